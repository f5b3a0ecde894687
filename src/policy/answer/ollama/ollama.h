/* SPDX-License-Identifier: Apache-2.0 */
/* ollama: translates Ollama's API to OpenAI's and back, as read in the documentation of Ollama 0.12 and in its
 * Python client 0.6. Pure; one thread.
 *
 *   | Ollama | OpenAI |
 *   | /api/chat | /v1/chat/completions |
 *   | /api/generate | /v1/chat/completions with one message; with "raw" or "suffix" /v1/completions |
 *   | /api/embed, /api/embeddings | /v1/embeddings |
 *
 * The engine is always asked for a stream of a chat or a text, because only a stream tells when the first token
 * came; an answer that is wanted whole is gathered here. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

#define OLLAMA_VERSION \
	"0.12.6" /* Told by /api/version: clients compare it with the version that they need. */

enum ollama_api { OLLAMA_NONE, OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED, OLLAMA_EMBEDDINGS };
/* |path|: with or without a query. OLLAMA_NONE: it has no body that is translated. */
enum ollama_api ollama_api_of(struct cgn_str path);

/* ---- requests ---- */

struct ollama_request {
	const char *path; /* The path of OpenAI's API. */
	bool stream;      /* The client wants a line for each event. */
	bool loads;       /* No prompt: the request asks only to load the model, and no engine is needed. */
	bool unloads;     /* A request that loads, with keep_alive 0. */
	bool keeps;       /* |keep_alive_ms| was given. */
	int64_t keep_alive_ms; /* How long the model is kept after the request; below 0: for ever. */
	size_t vectors;        /* Inputs of a request for vectors. */
};
/* Read keep_alive: a number of seconds, or a duration such as "5m", "1h30m", "300ms"; a negative one means
 * for ever, -1. |quoted|: |text| was a JSON string, without its quotes here. False: |text| is neither. */
bool ollama_keep_alive_read(struct cgn_str text, bool quoted, int64_t *out_ms);
/* Append the body for an engine. |body|: an object that json_parse accepted; |model|: the name that the engine
 * serves. INVALID: |err| names the field. Nothing is appended when |out->loads|. Memory: about the body's bytes,
 * and 32 KiB of stack. */
CGN_RC ollama_request_read(enum ollama_api api, struct json_val body, struct cgn_str model,
	struct ollama_request *out, struct cgn_buf *to, struct cgn_err *err);

/* ---- answers ---- */

/* Longest event of a stream, longest text of an answer that is gathered, and longest body that is not a
 * stream (embeddings): a longer one fails the answer. */
#define OLLAMA_EVENT_MAX ((size_t)1 << 20)
#define OLLAMA_TEXT_MAX  ((size_t)16 << 20)
#define OLLAMA_BODY_MAX  ((size_t)64 << 20)
#define OLLAMA_CALLS_MAX 128 /* Tool calls of one answer. */

struct ollama_time {
	uint64_t wall_ms; /* Unix time. */
	cgn_nsec elapsed; /* Since the request arrived. */
};

struct ollama_answer;
/* |model| is the name that the client used; it is copied. NULL: out of memory. */
struct ollama_answer *ollama_answer_new(enum ollama_api api, bool stream, struct cgn_str model);
void ollama_answer_free(struct ollama_answer **take);
/* An answer to |vectors| inputs has as many vectors; 0: not known. */
void ollama_answer_expect(struct ollama_answer *a, size_t vectors);
/* The engine's head came. |events|: its answer is an event stream; |encoding|: its Content-Encoding. Returns
 * true if lines follow, each as soon as its event is there; false: the bytes appended until the end are one
 * object. An answer that is not understood ends with an error, never with "done":true. */
bool ollama_answer_begin(struct ollama_answer *a, int status, bool events, struct cgn_str encoding);
/* Feed bytes of the engine, in order, split anywhere; append what the client gets now. */
void ollama_answer_feed(struct ollama_answer *a, struct cgn_str data, const struct ollama_time *now,
	struct cgn_buf *out);
/* The engine's answer has ended in good order: append the rest. */
void ollama_answer_end(struct ollama_answer *a, const struct ollama_time *now, struct cgn_buf *out);
/* The engine's answer broke off: append the error as a line, or as the whole answer. */
void ollama_answer_cut(struct ollama_answer *a, const char *why, struct cgn_buf *out);
/* Return the HTTP status for a client that has got no head yet: the engine's, or 502 for an answer that could not
 * be translated. */
int ollama_answer_status(const struct ollama_answer *a);
/* Return the media type for the client. */
const char *ollama_answer_type(const struct ollama_answer *a);

/* ---- answers that need no engine ---- */

/* Append the answer to a request that loads. */
void ollama_put_loaded(enum ollama_api api, struct cgn_str model, bool unloads, uint64_t wall_ms,
	struct cgn_buf *out);
/* A model as the lists describe it. */
#define OLLAMA_CARD_MAX 1024
struct ollama_model {
	struct cgn_str name;
	struct cgn_str
		card; /* Members of a JSON object, without braces, at most OLLAMA_CARD_MAX bytes; n 0: none. */
	uint64_t context;  /* Most tokens of a request; 0: not known. */
	uint64_t since_ms; /* Unix time. */
};
/* How a model is in memory. */
struct ollama_running {
	uint64_t bytes;      /* 0: not known. */
	uint64_t expires_ms; /* Unix time; 0: it stays. */
};
/* Put a row of /api/tags, or with |running| of /api/ps. Engines do not tell digests of their weights: the digest is the
 * BLAKE3 hash of the name, and the size is that of the memory or of the card's "meta" (llama-server), if it is known. */
void ollama_put_card(struct json_out *j, const struct ollama_model *m, const struct ollama_running *running);
/* Append the answer of /api/show. The context is model_info's "cognitora.context_length", where "cognitora" is its
 * "general.architecture". */
void ollama_put_show(const struct ollama_model *m, struct cgn_buf *out);
