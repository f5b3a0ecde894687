/* SPDX-License-Identifier: Apache-2.0 */
/* template: a model's chat template, the Jinja that Hugging Face's tokenizer_config.json carries, compiled once and rendered for each
 * request into the text that the engine will tokenize. Pure: no file, no clock; bounded in steps, memory and output.
 *
 * What text a template stands for is said by two programs that do not agree: the engines (vLLM, SGLang: transformers over Python's Jinja2) and
 * npm's @huggingface/jinja 0.5. TEMPLATE_ENGINES is the first and the default, since the router has to know what the engine saw;
 * TEMPLATE_HF_JS is the second, byte for byte, for whoever compares with it. Where they differ:
 *   | what                                    | engines                           | @huggingface/jinja                       |
 *   | s.strip(chars), lstrip, rstrip          | these characters                  | white space, whatever was asked          |
 *   | white space of strip and trim           | Unicode's and U+001C..U+001F      | Unicode's without U+0085, and U+FEFF     |
 *   | "x" + 1, "x" + list                     | error                             | joined as JavaScript prints it           |
 *   | attribute of an undefined value         | error                             | undefined                                |
 *   | for over undefined, none                | no turn, error                    | error                                    |
 *   | d.items where d has a key "items"       | the method                        | the key's value                          |
 *   | variables set in a loop                 | die with the turn                 | live until the loop ends                 |
 *   | free names of a macro                   | where it is written               | where it is called                       |
 *   | == between types, between containers    | false, by content                 | JavaScript's ==, identity                |
 *   | a < b < c                               | a < b and b < c                   | (a < b) < c                              |
 *   | {{ true }}, {{ none }}, {{ [1] }}       | True, None, Python's repr         | true, nothing, JSON                      |
 *   | tojson of undefined, of 1.0, of 1e16    | error, 1.0, 1e+16                 | null, 1, 10000000000000000               |
 *   | tojson(indent=0)                        | one item a line                   | one line                                 |
 *   | length of an emoji                      | 1                                 | 2                                        |
 *   | capitalize, title                       | lower-cases the rest              | leaves the rest                          |
 *   | remainder (%) of negative numbers       | the divisor's sign                | the dividend's sign                      |
 *   | string|int of "3.7"                     | 3 (both); "7x": 0                 | 7                                        |
 * Both refuse to change a list or a dictionary (append, pop, update...): transformers runs templates in a sandbox that forbids it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

#define TEMPLATE_MAX_SOURCE ((size_t)1 << 20) /* bytes; a longer source is INVALID */

struct template; /* compiled; immutable; any thread */

/* Compile |source| (UTF-8; copied), with trim_blocks and lstrip_blocks as transformers sets them. INVALID: err says
 * "line L column C: what" and names a statement, filter or test that is not supported; NO_MEMORY. */
CGN_RC template_compile(struct cgn_str source, struct template **out, struct cgn_err *err);
void template_free(struct template **take); /* NULL-safe */

enum template_dialect { TEMPLATE_ENGINES = 0, TEMPLATE_HF_JS };

/* JSON values are what json_parse accepted; they and the tokens are borrowed for the call. raw.p == NULL: none. */
struct template_ask {
	struct json_val messages;         /* array */
	struct json_val tools, documents; /* absent: the variable is none, as transformers passes it */
	struct json_val kwargs;           /* chat_template_kwargs: an object whose members become variables; they win over the ones here */
	struct cgn_str bos_token, eos_token, unk_token, pad_token; /* n == 0: the variable is undefined, as transformers does */
	bool add_generation_prompt;
	bool continue_final_message; /* cut the text behind the last message's content; not with add_generation_prompt: INVALID */
	int64_t now;                 /* Unix seconds, for strftime_now, shown in UTC */
	enum template_dialect dialect;
	/* 0: 64 MiB, 20 million, 256 MiB. A step is one node evaluated or some 256 bytes looked at: about 20 ns. Memory is what a render
	 * holds beside the output: strings that the template makes, unescaped copies of the JSON strings it reads, variables. */
	size_t max_output, max_steps, max_memory;
};

/* Append the text to |out|; on failure |out| is as it was. INVALID: raise_exception (err has its message), or an error of types
 * ("line L column C: what"); TOO_LARGE: over a bound; NO_MEMORY. */
CGN_RC template_render(const struct template *t, const struct template_ask *ask, struct cgn_buf *out, struct cgn_err *err);
