/* SPDX-License-Identifier: Apache-2.0 */
/* resume: a streamed answer whose engine died, gone on with by another one, so that the client sees one
 * answer: every event whole and once, under one id, with one role, one finish_reason, one [DONE] and a usage
 * that is true of all of it. Pure; one thread.
 *
 * What is fed goes on in whole events only: of a half-delivered event nothing could be taken back. Until an
 * engine dies they are its bytes, unchanged. Afterwards resume_body makes the request that goes on: the
 * client's bytes with the text that it has been shown behind them, and limits less what was said. Of that
 * text the white space at its end is left out, since chat templates trim it and tokenizers join it to what
 * follows; the engine says it again, and what of that was shown before is dropped. Everything else an engine
 * must not repeat: that it doesn't is a fact of its kind (struct engine_resume). The shapes are those of vLLM
 * 0.26, SGLang 0.5, llama.cpp 0.7.0 and cgn-sim.
 *
 * How many tokens were shown is taken from the stream's continuous usage if it has one, else from
 * resume_counted, else it is one for each event with text, and where an event may hold several at least one
 * for ENGINE_TOKEN_BYTES bytes: rather too many, so that no more is said than was asked for.
 *
 * Memory: an event up to RESUME_EVENT_MAX and the text up to RESUME_TEXT_MAX, each up to twice that while it
 * grows; beyond either, the answer is no longer resumable and what is fed goes through. */
#pragma once
#include "base/core/buf.h"
#include "base/json/json.h"
#include "policy/engine/engine.h"
#include "policy/prompt/prompt.h"

#define RESUME_EVENT_MAX ((size_t)1 << 20)
#define RESUME_TEXT_MAX  ((size_t)4 << 20)

/* Why an answer can't be gone on with; for logs. */
#define RESUME_LACKS_API      "api"       /* not a stream of chat or text completions */
#define RESUME_LACKS_SHAPE    "shape"     /* the request's or the stream's, as we know them */
#define RESUME_LACKS_SEVERAL  "several"   /* answers, or prompts */
#define RESUME_LACKS_IDS      "token_ids" /* the prompt is of ids: what text they are is not known here */
#define RESUME_LACKS_LOGPROBS "logprobs"
/* structured output: where its automaton stood is the engine's secret */
#define RESUME_LACKS_GRAMMAR "grammar"
#define RESUME_LACKS_PREFILL "prefill" /* the client itself has an answer continued */
#define RESUME_LACKS_CONTENT "content" /* something other than text was said: a tool call, reasoning */
#define RESUME_LACKS_BYTES   "bytes"   /* U+FFFD was said: the bytes behind it are not known */
#define RESUME_LACKS_MEMORY  "no_memory"

/* What of |body|, an object that json_parse accepted, stands against it; NULL: nothing. */
const char *resume_refusal(enum prompt_api api, struct json_val body);

struct resume;
/* For the answer to |body|, of which nothing is kept. NULL: out of memory. */
struct resume *resume_new(enum prompt_api api, struct json_val body);
void resume_free(struct resume **take);

/* What is fed from now on comes from an engine that continues like |how| (NULL: it can't, or it is not
 * known); after resume_body, from the one that was sent that body. What an engine before it left of an
 * unfinished event is forgotten. */
void resume_begin(struct resume *s, const struct engine_resume *how);
/* Bytes of the engine, in order, cut anywhere; what the client is to be sent now is appended to |out|. */
void resume_feed(struct resume *s, struct cgn_str data, struct cgn_buf *out);
/* The engine ended in good order: append what is left. */
void resume_flush(struct resume *s, struct cgn_buf *out);
/* It will not be gone on with: append what was held back; what is fed after this goes through. |why|: one of
 * the above. */
void resume_give_up(struct resume *s, const char *why, struct cgn_buf *out);
const char *resume_lost(const struct resume *s); /* why it can't be gone on with; NULL: it can */
size_t resume_bytes(const struct resume *s);     /* memory of its buffers */

enum resume_need {
	RESUME_NEEDS_ENGINE, /* resume_body, and another engine */
	RESUME_NEEDS_DONE,   /* all but the end marker was said: resume_done */
	RESUME_NEEDS_NOTHING /* all was said */
};
enum resume_need resume_need(const struct resume *s);
void resume_done(struct resume *s, struct cgn_buf *out);

/* The text that will be continued: what was shown, without the white space at its end. Borrowed. */
struct cgn_str resume_text(const struct resume *s);
/* So many tokens is that text, by the model's tokenizer. Nothing when that is known better, or can't be. */
void resume_counted(struct resume *s, uint64_t tokens);
/* The body that makes an engine go on from where the client's answer ends. |body|: the client's, an object
 * that json_parse accepted. |how| may be NULL only while there is no text to continue: then it is the
 * client's body again. Errors are |out|'s. */
void resume_body(struct resume *s, struct json_val body, const struct engine_resume *how,
	struct cgn_buf *out);
