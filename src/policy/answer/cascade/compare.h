/* SPDX-License-Identifier: Apache-2.0 */
/* compare: the same prompt, asked of two models, and whether their answers are the same. Pure. */
#pragma once
#include "base/core/buf.h"
#include "base/json/json.h"
#include "policy/text/prompt/prompt.h"

/* Append |body|, an object that json_parse accepted, as a request for |model| whose answer can be compared: one document, at
 * temperature 0; with the log-probabilities that the gate reads if |gated|. Failures are |out|'s. */
void cascade_double_body(enum prompt_api api, struct json_val body, struct cgn_str model, bool gated,
	struct cgn_buf *out);

enum cascade_likeness {
	CASCADE_SAME,
	CASCADE_DIFFERENT, /* texts that differ; another judge may find that they say the same */
	CASCADE_OTHER,     /* calls of tools that differ */
	CASCADE_UNKNOWN, /* an answer has no text or call, was broken off by the engine, or has none of the known shapes */
};
/* Compare two answers of chat or text completions. Texts are the same byte for byte without white space around them, or as JSON
 * values (members in any order, numbers by their value); calls of tools by the tools' names and their arguments. Of
 * a text that is cut ("length") only what there is counts: it is the same as one that begins with it. */
enum cascade_likeness cascade_compare(struct cgn_str a, struct cgn_str b);

/* ---- judge.c: an embedding model as a judge of texts ---- */

/* Append the request for the embeddings of the texts of two answers that cascade_compare found different. */
void cascade_judge_body(struct cgn_str a, struct cgn_str b, struct cgn_str model, struct cgn_buf *out);
/* Return the cosine of the two embeddings of |answer|, from -1 to 1; NAN: it does not have two of the same length. */
double cascade_similarity(struct cgn_str answer);
