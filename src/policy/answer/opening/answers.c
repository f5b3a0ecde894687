/* SPDX-License-Identifier: Apache-2.0 */
/* answers: the members in the answers of each route. The engines read: vLLM 0.33, SGLang 0.5.23, llama.cpp
 * 0.7, TensorRT-LLM, TEI, Infinity; hosted APIs: OpenAI, Anthropic, Cohere, Jina, Voyage. */
#include "base/core/err.h"
#include "policy/answer/opening/opening.h"

enum opening_member {
#define MEMBER(id, name) MEMBER_##id,
#include "policy/answer/opening/members.def"
#undef MEMBER
};

#define HAS(id) (1U << MEMBER_##id)
#define LISTS   OPENING_LISTS
#define BYTES   OPENING_BYTES
#define ENDS    OPENING_ENDS

uint32_t opening_answers(struct cgn_str path)
{
	static const struct {
		const char *path;
		uint32_t answers;
	} rows[] = {
#define ROUTE(path, answers) {path, answers},
#include "policy/answer/opening/routes.def"
#undef ROUTE
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_is(path, rows[i].path))
			return rows[i].answers;
	return 0;
}
