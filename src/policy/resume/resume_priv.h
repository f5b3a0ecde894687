/* SPDX-License-Identifier: Apache-2.0 */
/* resume, inside. */
#pragma once
#include "base/sse/sse.h"
#include "policy/resume/resume.h"

#define RESUME_TAG   0x4e5e0a01U
#define RESUME_NAMES 4 /* members of every chunk that stay the first stream's */

struct resume {
	uint32_t tag;
	enum prompt_api api;
	const struct engine_resume *how;
	const char *lost;
	/* asked */
	bool include_usage;
	/* the client has */
	bool opened, role, finished, usage_out, done;
	struct cgn_buf names[RESUME_NAMES]; /* raw JSON, as in its first chunk; empty: not in it */
	struct cgn_buf text;
	size_t kept;          /* of the text: up to its last byte that is no white space */
	uint64_t tokens;      /* in the text */
	uint64_t kept_tokens; /* in the kept part, and in what white space is of its last token */
	bool inexact;         /* they are an estimate */
	bool every_usage;     /* chunks with text have it */
	bool has_prompt;
	uint64_t prompt_tokens; /* of the client's own prompt, when a stream told */
	/* this stream */
	bool again;                  /* it is not the first */
	bool swallow;                /* it is asked for what is not text: the end, the usage */
	uint64_t base;               /* tokens that were continued */
	uint64_t events, bytes;      /* with text, of text */
	size_t overlap, overlap_end; /* the part of the text that may come a second time */
	/* the event under way */
	struct cgn_buf pending;
	size_t scanned; /* of pending */
	bool in_line, after_cr;
	bool crlf;   /* so its lines end */
	bool ending; /* its empty line is there up to the LF */
	struct sse_scan scan;
	struct cgn_buf *out; /* of the call that runs */
	struct cgn_buf piece;
};

/* edit.c: replaced parts of a JSON text. */
#define EDITS_MAX 24
struct edits {
	struct cgn_str doc;
	struct edit {
		struct cgn_str old, new; /* old: a part of doc, maybe empty */
		char number[24];
	} v[EDITS_MAX];
	size_t n;
};
/* |new| is borrowed until resume_edit_apply; no two overlap */
void resume_edit_put(struct edits *e, struct cgn_str old, struct cgn_str new);
void resume_edit_u64(struct edits *e, struct cgn_str old, uint64_t value);
/* The member |key| of |object|, with the comma that goes with it. It is there, and not the object's only one
 * that is dropped. */
void resume_edit_drop(struct edits *e, struct json_val object, const char *key);
void resume_edit_apply(const struct edits *e, struct cgn_buf *out);
