/* SPDX-License-Identifier: Apache-2.0 */
/* hook: the questions of a request to the external checks, and the answer that is held back until it is
 * allowed. The folder hooks/ owns it. */
#pragma once
#include "io/wire/http/head.h"
#include "policy/answer/hook/hook.h"
#include "router/request/request/answer.h"
#include "router/shared/rules/hooks.h"

struct webask;
struct gw_ask_job;     /* hooks/ask.c: a document that the thread pool writes */
struct gw_hook_client; /* hooks/client.c */

/* A question, from the document to the decision. */
struct gw_ask {
	enum gw_hook_kind hook;
	struct gw_hook_client *client; /* A reference while the question is open. */
	struct gw_ask_job *job;        /* NULL: the document is not being written */
	struct webask *fetch;          /* NULL: the document was not sent */
	struct cgn_buf document;
	uint64_t booked; /* Bytes of the document that are booked of router.max_inflight_body. */
	cgn_nsec since, timeout;
	bool repeated; /* Sent again: the first connection had been closed. */
	bool answered; /* |verdict| is there and was not looked at. */
	struct hook_verdict verdict;
};

/* An answer of which the client gets only the allowed bytes. */
struct gw_hold {
	bool on;
	bool lifted;   /* The rest passes unchecked: a hook failed, and the settings let that pass. */
	bool head_out; /* The client has the head. */
	bool ended;    /* All of the answer is there. */
	bool told;     /* A question said that the answer is whole. */
	bool closed;   /* The client's answer was ended. */
	struct cgn_arena arena; /* The head. */
	int status;
	struct http_field *fields;
	size_t n_fields;
	int64_t length;
	struct cgn_str type;
	struct http_field trailer;
	size_t n_trailers;
	/* The answer from its beginning, as the client would get it, at most |max|; once |lifted|, the bytes
	 * that were not sent. */
	struct cgn_buf bytes;
	uint64_t booked;             /* Bytes booked of router.max_inflight_body. */
	size_t sent, allowed, asked; /* Sent to the client; allowed; part of the current question. */
	struct gw_hook_client *client;
	cgn_nsec timeout;
	uint64_t max, window;
	bool pass; /* As in struct gw_hook_rules. */
	/* The client gets no more of the answer, and this error. */
	bool refused;
	struct gw_refusal refusal;
	const char *message, *outcome;
};

#define GW_HOOKING_TAG 0x64800c01U
struct gw_hooking {
	uint32_t tag;
	struct gw_req *r;
	bool before_asked, before_done;
	struct gw_ask
		ask; /* There is one question at a time: an answer begins when the question before it was answered. */
	struct gw_hold hold;
};
