/* SPDX-License-Identifier: Apache-2.0 */
/* prompt: the part of a request's body that an engine reads: chat messages in the shape that a template
 * takes, a text, or token ids. Pure; any thread.
 *
 * The conversions are vLLM's, as of 0.26 (entrypoints/chat_utils.py, openai/responses/utils.py,
 * anthropic/serving_messages.py):
 * - content is a string, or a list of {"type":"text","text"} when the template loops over message.content
 *   (prompt_format_of). The parts of a string are joined with "\n"; null is ""; a tool's parts are always
 *   joined.
 * - a message has role, content, name, tool_call_id, tool_calls (arguments as JSON, not as a string), and
 *   reasoning under both of its names, and nothing else. An empty tool_calls is left out.
 * - a tool is {"type","function":{"name","description","parameters", the rest}}, with null for a missing
 *   description or parameters.
 * - /v1/responses: instructions are a system message; items are merged into the assistant's message before
 *   them.
 * - /v1/messages: system is one message, tool_use a tool call, tool_result a message of role "tool".
 * docs/concepts/prompts.md lists the differences to SGLang and llama.cpp. A medium (image, audio, video, file) becomes
 * the text PROMPT_MEDIUM with the hex digest of its URL or data: before the text of a string, where vLLM puts
 * its placeholders, and at its own place in a list. */
#pragma once
#include "base/core/buf.h"
#include "base/digest/digest.h"
#include "base/json/json.h"

enum prompt_api {
	PROMPT_NONE, /* No prompt that an engine would cache: rerank, score, tokenize. */
	PROMPT_CHAT,
	PROMPT_COMPLETIONS,
	PROMPT_RESPONSES,
	PROMPT_MESSAGES,
	PROMPT_EMBEDDINGS,
};
enum prompt_api prompt_api_of(struct cgn_str path); /* |path|: with or without a query. */

enum prompt_format {
	PROMPT_STRING, /* Content is a string. */
	PROMPT_PARTS,  /* Content is a list of parts. */
	PROMPT_KEPT,   /* Content is a string or a list of parts, as the client wrote it. */
	PROMPT_RAW,    /* For an engine's own endpoint: unchanged except for media. */
};
/* Detect the format as vLLM does: PROMPT_PARTS when a loop over messages contains a loop over their
 * content. SGLang takes such a template for PROMPT_KEPT: it makes no list of a string. */
enum prompt_format prompt_format_of(struct cgn_str template_source);

#define PROMPT_MEDIUM      "cgnmedium"
#define PROMPT_MEDIUM_TEXT (sizeof PROMPT_MEDIUM - 1 + 2 * DIGEST_BYTES) /* Bytes of one mark. */
/* A body with more media is refused. */
#define PROMPT_MEDIA_MAX 256

enum prompt_kind { PROMPT_IS_CHAT, PROMPT_IS_TEXT, PROMPT_IS_IDS };

/* Why there is no prompt: labels of a metric. */
#define PROMPT_LACKS_SHAPE "shape" /* The body has an unknown shape or exceeds a bound. */
/* The body carries its own chat template, which engines accept only when configured to. */
#define PROMPT_LACKS_TEMPLATE "request_template"
/* The beginning of the prompt is stored inside the engine. */
#define PROMPT_LACKS_HISTORY  "previous_response"
#define PROMPT_LACKS_TRUNCATE "truncated" /* The engine cuts the front of the prompt. */
#define PROMPT_LACKS_MEMORY   "no_memory"

struct prompt {
	enum prompt_kind kind;
	struct json_val messages, tools; /* CHAT: an array; tools may be absent (raw.p NULL). */
	/* As in the body; absent: raw.p NULL. The body's reasoning_effort is one of the kwargs. */
	struct json_val documents, kwargs;
	bool add_generation_prompt, continue_final_message;
	struct cgn_str text; /* TEXT: unescaped. */
	const uint32_t *ids; /* IDS. */
	size_t n_ids;
	/* Add the tokenizer's special tokens: as the body says, else the default of its API. */
	bool add_specials;
	struct digest media[PROMPT_MEDIA_MAX]; /* In order of appearance. */
	size_t n_media;
	struct cgn_buf store; /* Holds everything that is not borrowed from the body. */
};

struct prompt_ask {
	enum prompt_api api; /* Not PROMPT_NONE. */
	enum prompt_format format;
	size_t max_ids; /* Maximum of a prompt of token ids; the rest is left out. */
};
/* Read the prompt of |body|, an object that json_parse accepted; |out| borrows from it. Return false with the
 * reason in |*lacks|. Call prompt_fini in either case. Memory: at most twice the body's bytes and 64 KiB. */
bool prompt_read(const struct prompt_ask *ask, struct json_val body, struct prompt *out, const char **lacks);
void prompt_fini(struct prompt *p);
