// Draws a round's draft tree for people, the accepted path marked.
#pragma once

#include <string>

#include "base/views.h"
#include "formats/tokenizer.h"

namespace kd {

/// One line a node, children below their parent in order of weight: the token, the probability of
/// its path, and * where it was accepted; then the bonus token.
std::string draw_tree(const TreeView& tree, const AcceptedView& accepted,
                      const Tokenizer& tokenizer);

}  // namespace kd
