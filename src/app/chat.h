// kdtree run --chat: a conversation at the prompt.
#pragma once

#include "app/answer.h"

namespace kd {

/// Reads messages from standard input and streams an answer to each to standard output; all that is
/// said beside the answers goes to standard error. /help lists the commands. The whole conversation
/// is rendered through the model's chat template and read anew each turn; control tokens written in
/// a message count as such (encode_messages).
///
/// Ctrl-C stops an answer (what is there of it stays in the conversation); at the prompt it clears
/// the line, and leaves when nothing was there twice. A turn that the context cannot hold, or that
/// is refused for another reason, leaves the conversation as it was. Returns 0 at the end of the
/// input. Throws kd::Error.
int chat(const AnswerOptions& options);

}  // namespace kd
