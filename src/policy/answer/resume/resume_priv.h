/* SPDX-License-Identifier: Apache-2.0 */
/* resume, inside. */
#pragma once
#include "base/sse/sse.h"
#include "policy/answer/resume/resume.h"

#define RESUME_TAG   0x4e5e0a01U
#define RESUME_NAMES 4 /* Members of every chunk that keep the first stream's value. */

/* The event of the current stream that arrives. */
struct resume_event {
	struct cgn_buf pending;
	size_t scanned; /* Bytes of |pending| scanned. */
	bool in_line, after_cr;
	bool crlf;   /* Lines end in CRLF. */
	bool ending; /* The empty line is complete except for the LF. */
	struct sse_scan scan;
};

struct resume {
	uint32_t tag;
	enum prompt_api api;
	const struct engine_resume *how;
	const char *lost;
	/* ---- from the request ---- */
	bool include_usage, greedy;
	/* ---- repetition ---- */
	bool repeats, repeating, differs; /* |repeating|: the current stream. */
	uint64_t probs, had_probs,
		shown_probs; /* Chunks with log-probabilities: of this stream, of those before, shown. */
	/* ---- shown to the client ---- */
	bool opened, role, finished, usage_out, done;
	struct cgn_buf names[RESUME_NAMES]; /* Raw JSON from the first chunk; empty: absent. */
	struct cgn_buf text;
	size_t kept;          /* Length of the text up to its last byte that is not white space. */
	uint64_t tokens;      /* Tokens of the text. */
	uint64_t kept_tokens; /* Tokens of the kept part, including white space in its last token. */
	bool inexact;         /* The numbers of tokens are estimates. */
	bool every_usage;     /* Chunks with text carry usage. */
	bool has_prompt;
	uint64_t prompt_tokens; /* Tokens of the client's own prompt, when a stream reported them. */
	/* ---- the current stream ---- */
	bool again; /* Not the first stream. */
	/* The stream is only asked for the end and the usage; its text is dropped. */
	bool swallow;
	uint64_t base;               /* Tokens of the continued text. */
	uint64_t events, bytes;      /* Events with text, and bytes of text. */
	size_t overlap, overlap_end; /* The part of the text that may come a second time. */
	struct resume_event event;
	struct cgn_buf *out; /* Output of the current call. */
	struct cgn_buf piece;
};

/* Return why the text of the answer to |body| can't be continued; NULL: it can. */
const char *resume_uncontinued(enum prompt_api api, struct json_val body);

/* ---- edit.c: replaces parts of a JSON text ---- */
#define EDITS_MAX 24
struct edits {
	struct cgn_str doc;
	struct edit {
		struct cgn_str old, new; /* old: a part of doc; may be empty. */
		char number[24];
	} v[EDITS_MAX];
	size_t n;
};
/* Replace |old| by |new|, which is borrowed until resume_edit_apply. Edits must not overlap. */
void resume_edit_put(struct edits *e, struct cgn_str old, struct cgn_str new);
void resume_edit_u64(struct edits *e, struct cgn_str old, uint64_t value);
/* Drop the member |key| of |object| with its comma. The member must exist, and at least one other member must
 * stay. */
void resume_edit_drop(struct edits *e, struct json_val object, const char *key);
void resume_edit_apply(const struct edits *e, struct cgn_buf *out);
