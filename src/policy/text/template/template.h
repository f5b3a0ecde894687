/* SPDX-License-Identifier: Apache-2.0 */
/* template: a model's chat template, the Jinja that Hugging Face's tokenizer_config.json carries, compiled
 * once and rendered for each request into the text that the engine will tokenize. Pure: no file, no clock;
 * bounded in steps, memory and output.
 *
 * The text is the one that the engines (vLLM, SGLang) make: transformers over Python's Jinja2 3.1. Like the
 * sandbox of transformers, the render refuses to change a list or a dictionary (append, pop, update). tojson is
 * that of transformers (json.dumps), not Jinja's: nothing is escaped for HTML.
 *
 * Not supported; templates that use them fail with an error that names them: extends, block, include,
 * import, autoescape, trans, do; the filters attr, batch, center, filesizeformat, format, groupby, pprint,
 * random, slice, striptags, truncate, urlencode, urlize, wordwrap, xmlattr; "%" and format() on strings;
 * dictionary keys that are not strings; arithmetic beyond 64 bits. Known differences: safe and escape give
 * plain strings, not Markup; select, map and similar filters are computed at once, not lazily; a capital
 * that consists of several letters is supported for "\u00df" only; sort_keys orders by code point; half of a
 * surrogate pair cannot be produced. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

#define TEMPLATE_MAX_SOURCE ((size_t)1 << 20) /* In bytes; a longer source is INVALID. */

struct template; /* Compiled; immutable; any thread. */

/* Compile |source| (UTF-8; copied), with trim_blocks and lstrip_blocks as transformers sets them. INVALID:
 * err says "line L column C: what" and names a statement, filter or test that is not supported; NO_MEMORY. */
CGN_RC template_compile(struct cgn_str source, struct template **out, struct cgn_err *err);
void template_free(struct template **take); /* NULL-safe. */

/* JSON values must have been accepted by json_parse; they and the tokens are borrowed for the call. raw.p ==
 * NULL: absent. */
struct template_ask {
	struct json_val messages;         /* An array. */
	struct json_val tools, documents; /* Absent: the variable is none, as in transformers. */
	/* chat_template_kwargs: an object whose members become variables and override the ones here. */
	struct json_val kwargs;
	/* n == 0: the variable is undefined, as in transformers. */
	struct cgn_str bos_token, eos_token, unk_token, pad_token;
	bool add_generation_prompt;
	/* Cut the text behind the last message's content. Together with add_generation_prompt: INVALID. */
	bool continue_final_message;
	int64_t now; /* Unix seconds, for strftime_now, shown in UTC. */
	/* 0: 64 MiB, 20 million, 256 MiB. A step is one evaluated node or about 256 scanned bytes, which
	 * takes about 20 ns. Memory is everything a render holds besides the output: strings that the
	 * template makes, unescaped copies of JSON strings, variables. */
	size_t max_output, max_steps, max_memory;
};

/* Append the rendered text to |out|; on failure |out| is unchanged. INVALID: raise_exception (err has its
 * message), or a type error ("line L column C: what"); TOO_LARGE: a bound was exceeded; NO_MEMORY. */
CGN_RC template_render(const struct template *t, const struct template_ask *ask, struct cgn_buf *out,
	struct cgn_err *err);
