/* SPDX-License-Identifier: Apache-2.0 */
/* resume: continues a streamed answer on another engine after the first one died, so that the client sees one
 * answer: each event whole and once, under one id, with one role, one finish_reason, one [DONE] and a usage
 * that covers all of it. Pure; one thread.
 *
 * Only whole events are forwarded, because part of an event could not be taken back. Until an engine dies,
 * they are the engine's bytes, unchanged. Afterwards resume_body makes the request for the next engine: the
 * client's body with the text shown so far, and limits reduced accordingly. White space at the end of that
 * text is left out, because chat templates trim it and tokenizers join it to the following text; the engine
 * generates it again, and the part that the client has is dropped. An engine must not repeat anything else;
 * whether it does is a property of its kind (struct engine_resume). The shapes are those of vLLM 0.26, SGLang
 * 0.5, llama.cpp 0.7.0 and cgn-sim.
 *
 * The number of tokens shown comes from the stream's continuous usage if it has one, else from
 * resume_counted, else it is one for each event with text; where an event may hold several, at least one for
 * ENGINE_TOKEN_BYTES bytes. The estimate is rather too high, so that the answer never exceeds the requested
 * limit.
 *
 * Memory: an event of at most RESUME_EVENT_MAX and a text of at most RESUME_TEXT_MAX, each up to twice that
 * while it grows. Beyond either, the answer is no longer resumable and all bytes are forwarded as they
 * are. */
#pragma once
#include "base/core/buf.h"
#include "base/json/json.h"
#include "policy/node/engine/engine.h"
#include "policy/text/prompt/prompt.h"

#define RESUME_EVENT_MAX ((size_t)1 << 20)
#define RESUME_TEXT_MAX  ((size_t)4 << 20)

/* An answer at temperature 0 is resumed by repetition where its text can't be continued: the next engine gets the client's
 * body, the text that the client has is dropped, and the first byte that differs ends the answer (resume_differs). This
 * holds for structured output, log-probabilities, prompts of token ids, answers that the client itself continues, and texts
 * with U+FFFD, which may stand for bytes that are not known. Any engine can repeat. */

/* Why an answer can't be resumed; for logs. */
#define RESUME_LACKS_API      "api"       /* Not a stream of chat or text completions. */
#define RESUME_LACKS_SHAPE    "shape"     /* The shape of the request or of the stream is unknown. */
#define RESUME_LACKS_SEVERAL  "several"   /* Several answers or prompts. */
#define RESUME_LACKS_IDS      "token_ids" /* The prompt is token ids; their text is unknown here. */
#define RESUME_LACKS_LOGPROBS "logprobs"
/* Structured output: the state of the grammar is inside the engine. */
#define RESUME_LACKS_GRAMMAR "grammar"
#define RESUME_LACKS_PREFILL "prefill" /* The client itself asked to continue an answer. */
#define RESUME_LACKS_CONTENT "content" /* The answer has content other than text: a tool call or reasoning. */
#define RESUME_LACKS_BYTES   "bytes"   /* The answer has U+FFFD; the bytes that it stands for are unknown. */
#define RESUME_LACKS_MEMORY  "no_memory"
#define RESUME_LACKS_GREEDY \
	"temperature" /* Only an answer at temperature 0 can be repeated, which was asked for. */
#define RESUME_LACKS_SAME "differs" /* The engine that was to repeat the answer said something else. */

/* Return the reason |why|, one of these, as a sentence for the client. */
const char *resume_lost_text(const char *why);

/* Return why the answer to |body|, an object that json_parse accepted, can't be resumed; NULL: it can. */
const char *resume_refusal(enum prompt_api api, struct json_val body);

struct resume;
/* Create the state for the answer to |body|, which is not kept. */
struct resume *resume_new(enum prompt_api api, struct json_val body);
/* Return true if |body| asks for temperature 0. */
bool resume_is_greedy(struct json_val body);
/* Resume by repetition even where the text can be continued: the last bits of an engine's numbers depend on how it computed
 * the text before. Only for an answer at temperature 0. */
void resume_repeat(struct resume *s);
/* Return true if the current engine does not repeat what the client has: nothing more may be sent. */
bool resume_differs(const struct resume *s);
void resume_free(struct resume **take);

/* Bytes fed from now on come from an engine that continues like |how| (NULL: it can't, or it is unknown);
 * after resume_body, from the engine that was sent that body. Drops the previous engine's unfinished
 * event. */
void resume_begin(struct resume *s, const struct engine_resume *how);
/* Feed bytes of the engine, in order, split anywhere. Append to |out| what the client is to be sent now. */
void resume_feed(struct resume *s, struct cgn_str data, struct cgn_buf *out);
/* The engine ended the stream properly: append the rest. */
void resume_flush(struct resume *s, struct cgn_buf *out);
/* Stop being resumable: append the held bytes and forward all further ones. |why| is one of the above. */
void resume_give_up(struct resume *s, const char *why, struct cgn_buf *out);
const char *resume_lost(const struct resume *s); /* Return why the answer can't be resumed; NULL: it can. */
size_t resume_bytes(const struct resume *s);     /* Memory of the buffers. */

enum resume_need {
	RESUME_NEEDS_ENGINE, /* Needs resume_body and another engine. */
	RESUME_NEEDS_DONE,   /* Only the end marker is missing: call resume_done. */
	RESUME_NEEDS_NOTHING /* The answer is complete. */
};
enum resume_need resume_need(const struct resume *s);
/* Return the bytes of the event that is not whole yet. Borrowed. */
struct cgn_str resume_pending(const struct resume *s);
void resume_done(struct resume *s, struct cgn_buf *out);

/* Return the text to continue: the text shown, without white space at its end. Empty where the answer is repeated.
 * Borrowed. */
struct cgn_str resume_text(const struct resume *s);
/* Set the tokens of resume_text, counted with the model's tokenizer. Ignored when the number is known
 * exactly, or the answer can't be resumed. */
void resume_counted(struct resume *s, uint64_t tokens);
/* Append the body of the request that continues the client's answer. |body|: the client's, an object that
 * json_parse accepted. |how| may be NULL only while there is no text to continue; the result is then the
 * client's body. Failures are |out|'s. */
void resume_body(struct resume *s, struct json_val body, const struct engine_resume *how,
	struct cgn_buf *out);
