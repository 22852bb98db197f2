// A drafter for tests and studies: it knows the continuation and is right as often as a profile
// says, so that any acceptance behaviour can be put on any model.
#pragma once

#include "formats/oracle_profile.h"
#include "models/drafter.h"

namespace kd {

/// Marginal lattices: depth d has one state a rank with the profile's probabilities; the true token
/// stands at the rank drawn by (seed, position, depth), or nowhere; the others are wrong tokens.
/// Where the continuation is unknown it proposes nothing.
class OracleDrafter final : public Drafter {
  public:
    OracleDrafter(OracleProfile profile, int32_t vocabulary);

    void ingest(std::span<const IngestSegment>) override {}
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override;

  private:
    OracleProfile profile_;
    int32_t vocabulary_;
};

}  // namespace kd
