/* SPDX-License-Identifier: Apache-2.0 */
/* prompt: what a request's body asks an engine to read: chat messages in the shape in which its template gets
 * them, a text, or token ids. Pure; any thread.
 *
 * The conversions are vLLM's, read at 0.26 (entrypoints/chat_utils.py, openai/responses/utils.py,
 * anthropic/serving_messages.py):
 *  - content is a string, or a list of {"type":"text","text"} when the template walks through message.content
 *    (prompt_format_of); parts of
 *    a string are joined with "\n"; null is ""; a tool's parts are always joined;
 *  - a message has role, content, name, tool_call_id, tool_calls with their arguments as JSON and not as a
 *    string, reasoning under both of
 *    its names, and nothing else; an empty tool_calls is left out;
 *  - a tool is {"type","function":{"name","description","parameters", the rest}}, null where description or
 *    parameters are missing;
 *  - /v1/responses: instructions are a system message; items are merged into the assistant's message before
 *    them;
 *  - /v1/messages: system is one message, tool_use is a tool call, tool_result a message of role "tool".
 *    Where SGLang and llama.cpp differ stands in docs/prompts.md. A medium (image, audio, video, file) is
 *    PROMPT_MEDIUM and the hex digest of its URL or data in the place of a text: in front of a string's text,
 *    as vLLM puts its placeholders, and at its own place in a list. */
#pragma once
#include "base/core/buf.h"
#include "base/digest/digest.h"
#include "base/json/json.h"

enum prompt_api {
	PROMPT_NONE, /* has no prompt that an engine would keep: rerank, score, tokenize */
	PROMPT_CHAT,
	PROMPT_COMPLETIONS,
	PROMPT_RESPONSES,
	PROMPT_MESSAGES,
	PROMPT_EMBEDDINGS,
};
enum prompt_api prompt_api_of(struct cgn_str path); /* query included or not */

enum prompt_format {
	PROMPT_STRING, /* content is a string */
	PROMPT_PARTS,  /* content is a list of parts */
	PROMPT_RAW,    /* for an engine's own endpoint: as it came, but for media */
};
/* As vLLM detects it: PROMPT_PARTS when a loop goes over the content of what a loop over messages gives. */
enum prompt_format prompt_format_of(struct cgn_str template_source);

#define PROMPT_MEDIUM      "cgnmedium"
#define PROMPT_MEDIUM_TEXT (sizeof PROMPT_MEDIUM - 1 + 2 * DIGEST_BYTES) /* bytes of one */
#define PROMPT_MEDIA_MAX   256                                           /* more are refused */

enum prompt_kind { PROMPT_IS_CHAT, PROMPT_IS_TEXT, PROMPT_IS_IDS };

/* Why there is no prompt: labels of a metric. */
#define PROMPT_LACKS_SHAPE "shape" /* the body is not what we know, or beyond a bound */
/* it brings a chat template of its own, which engines take only when told to */
#define PROMPT_LACKS_TEMPLATE "request_template"
#define PROMPT_LACKS_HISTORY  "previous_response" /* what stands before it is the engine's secret */
#define PROMPT_LACKS_TRUNCATE "truncated"         /* the engine cuts the front off */
#define PROMPT_LACKS_MEMORY   "no_memory"

struct prompt {
	enum prompt_kind kind;
	struct json_val messages, tools; /* CHAT: an array; tools may be absent (raw.p NULL) */
	/* as in the body; absent: raw.p NULL. The body's reasoning_effort is one of the kwargs */
	struct json_val documents, kwargs;
	bool add_generation_prompt, continue_final_message;
	struct cgn_str text; /* TEXT: unescaped */
	const uint32_t *ids; /* IDS */
	size_t n_ids;
	bool add_specials; /* what the tokenizer puts around a text: as the body says, else as its API does */
	struct digest media[PROMPT_MEDIA_MAX]; /* in order of their places */
	size_t n_media;
	struct cgn_buf store; /* holds all of this that is not in the body */
};

struct prompt_ask {
	enum prompt_api api; /* not PROMPT_NONE */
	enum prompt_format format;
	size_t max_ids; /* of a prompt of token ids: the rest is left out */
};
/* |body|: an object that json_parse accepted; |out| borrows from it. False: |*lacks| says why. prompt_fini in
 * either case. Memory: at most twice the body's bytes and 64 KiB. */
bool prompt_read(const struct prompt_ask *ask, struct json_val body, struct prompt *out, const char **lacks);
void prompt_fini(struct prompt *p);
/* D[-1] of its chain: |model|, the body's "lora_path" (SGLang) or "lora" (llama.cpp), its "cache_salt". */
struct digest prompt_root(struct cgn_str model, struct json_val body, struct cgn_arena *a);
