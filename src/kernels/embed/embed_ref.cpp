#include "base/check.h"
#include "kernels/embed/embed.h"

namespace kd {

void embed_ref(const EmbedParams& params) {
    const WeightView& table = params.table;
    for (size_t row = 0; row < params.tokens.size(); ++row) {
        const int32_t token = params.tokens[row];
        KD_CHECK(token >= 0 && token < table.rows, "token {} of {}", token, table.rows);
        dequantise_row(table, token, params.out + static_cast<int64_t>(row) * table.columns);
    }
}

}  // namespace kd
