/* SPDX-License-Identifier: Apache-2.0 */
/* answer: the answer as far as the client has it. The folder answer/ owns it. */
#pragma once
#include "base/core/buf.h"
#include "policy/node/engine/usagescan.h"

struct gw_resume;         /* answer/resume.c */
struct coding;            /* base/coding */
struct cached_filter;     /* policy/node/handoff */
struct modelname;         /* policy/text/modelname */
struct ollama_answer;     /* policy/answer/ollama */
struct toolcall;          /* policy/text/toolcall */
struct gw_ollama_reading; /* answer/ollama.c */

/* Values of X-Cgn-Refused-By: the part that refuses. A status does not tell it: 403 may be the key's or a hook's. */
#define GW_BY_KEY    "key" /* The key or the token: not this request, but its caller. */
#define GW_BY_HOOK   "hook"
#define GW_BY_BUDGET "budget"
#define GW_BY_RATE   "rate"
#define GW_BY_SHARE  "share"
#define GW_BY_ENGINE "engine"
#define GW_BY_ROUTER "router"

/* How an error appears in OpenAI's shape and in the metrics. */
struct gw_refusal {
	int status;
	const char *type, *code, *param; /* |param| may be NULL */
	const char *by;                  /* GW_BY_*; NULL: the router */
	const char *reason;              /* label of cgn_rejected_total; NULL: not counted */
	const char *allow;               /* Allow, with 405 */
	const char *accept_encoding;     /* Accept-Encoding, with 415 (RFC 9110, 15.5.16) */
	unsigned retry_after;            /* seconds; 0: no Retry-After */
	bool noted;                      /* the audit log has it already */
};

/* The use of a request (account/used.c). */
struct gw_used {
	uint64_t requests; /* 1 if it counts: an engine answered it, or the client left while one worked */
	uint64_t input, cached, output; /* tokens; |cached| of |input| */
	uint64_t money, joules;         /* as policy/who/budget counts them */
	bool estimated;                 /* the engine did not report the tokens */
};

struct gw_answer {
	int status;
	bool head_sent, event_stream;
	bool early; /* the client has a head with status 200 though no engine has answered yet; keepalive.h */
	/* |early|, and the engine's answer is not an event stream: it is kept, and told as an error */
	bool unfit;
	bool comments;           /* comments may stand between the events */
	cgn_nsec commented_at;   /* when the last one was sent; 0: none */
	bool paused, was_paused; /* paused for a slow client now; paused at any time */
	struct cgn_buf part;     /* bytes of an event whose rest has not come; answer/events.h */
	bool torn;               /* The client has a part of an event. */
	/* The current leg's engine was asked for the usage of the stream, and the client did not ask. */
	bool usage_hidden;
	/* 1 + slot of the node that refused the leg with that question; the request asks it no more. 0: none did */
	uint32_t usage_doubt;
	uint64_t bytes_out;  /* bytes of the body */
	uint64_t events;     /* events of a stream: as many tokens, where the engine reports no usage */
	uint8_t mark_begun;  /* state of sse_marks */
	struct cgn_buf lead; /* first bytes of the answer, until |led|; at most ANSWERHOME_WITHIN */
	bool led;            /* the beginning was read */
	cgn_nsec first_byte, last_byte;
	struct usage usage;
	struct gw_used used; /* the charged amounts, once the answer |is_counted| */
	bool is_counted;
	struct usagescan told;  /* counts and text of the bytes relayed */
	struct coding *decoder; /* reads an encoded body; NULL: the body is plain, or |unread| */
	uint64_t decoded;       /* bytes that |decoder| made */
	bool unread;            /* the body has a coding that is not known, or is damaged */
	struct usage_tail tail; /* last bytes relayed */
	/* id of a response of /v1/responses, in the request's arena; empty: the answer has none */
	struct cgn_str response_id;
	const char *outcome;      /* outcome for the log; NULL: as the status says */
	struct metric_cell *itl;  /* metric cell of the model's inter-token latency, once known */
	struct gw_resume *resume; /* state for resuming; NULL: a cut answer stays cut */
	/* puts the name that the client asked for back into the answer; in the request's arena; NULL: not needed */
	struct modelname *rename;
	/* puts the cached tokens of the prefill leg into the answer; in the request's arena; NULL: not needed */
	struct cached_filter *cached;
	struct cgn_buf held; /* bytes behind a number that |cached| waits for, at most GW_HELD_MAX */
	struct gw_ollama_reading
		*ollama_reading;      /* a body of Ollama's API on its way to an engine; NULL: none */
	struct ollama_answer *ollama; /* translates the engine's answer; NULL: the client gets it as it is */
	struct toolcall *tools;       /* reads the tools that the answer calls; NULL: not needed */
	struct cgn_buf
		whole; /* translated part of an answer that is sent as a whole; or an answer that is |unfit| */
	bool ollama_loads; /* the request only loads the model, or unloads it */
	bool ollama_unloads;
	struct cgn_str ollama_asked; /* the model, as the client calls it; for a request that loads */
	bool ollama_lines;           /* the translated answer goes to the client in lines, behind its head */
	/* reason why the answer can't be resumed, or was not, though that was asked for; NULL: it can */
	const char *unresumable;
	const char *
		cut_for; /* the same as a sentence, once the answer broke off; in the request's arena; NULL: none */
	struct gw_refusal refusal;   /* the error that is to be sent, if |refused| */
	struct cgn_buf refusal_text; /* body of the refusal */
	bool refused;
};
