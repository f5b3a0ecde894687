/* SPDX-License-Identifier: Apache-2.0 */
/* ask: a question on a fiber, from this machine or another one, and what the answer says. */
#pragma once
#include "../world/world.h"
#include "base/core/buf.h"

struct ask {
	const char *host; /* Address or "127.0.0.1" */
	uint16_t port;
	const char *method, *path;
	const char *kind;   /* Content-Type; NULL: application/json */
	const char *fields; /* Further lines of the head, each with its CRLF; NULL: none */
	struct cgn_str body;
	uint64_t patience; /* The client leaves after this time */
	size_t leaves_at;  /* Or after so many bytes of the answer; 0: never */
};
struct told {
	int status; /* 0: no head came */
	bool whole; /* The answer came to its end */
	bool late, left;
	char peer[64], node[64], kind[64]; /* x-cgn-peer, x-cgn-node, content-type */
	struct cgn_buf body;               /* Without the marks of chunks */
};
/* Ask; the caller frees |out| with told_fini. */
void ask_once(const struct ask *a, struct told *out);
/* As ask_once, from another machine: a process there asks. */
void ask_from(struct world_host *h, const struct ask *a, struct told *out);
void told_fini(struct told *t);

/* Text that an answer of OpenAI's /v1/completions or /v1/chat/completions has, streamed or not. */
struct told_text {
	struct cgn_buf text;
	bool done;     /* The stream has its [DONE], or the document is whole */
	bool error;    /* There is an error's object or event */
	bool strange;  /* Something else than that */
	char code[64]; /* The error's */
};
void told_text(const struct told *t, struct told_text *out);
/* As told_text, for the document |s|, which adds to |out|. */
void told_text_add(struct cgn_str s, struct told_text *out);
