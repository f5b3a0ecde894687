/* SPDX-License-Identifier: Apache-2.0 */
/* question: a request of a client, drawn from the plan, and its right answer. */
#pragma once
#include "said.h"
#include "scenario.h"

/* The API in which a request is sent. */
enum api { API_COMPLETIONS, API_CHAT, API_MESSAGES, API_RESPONSES, API_OLLAMA };

struct request {
	unsigned id;
	enum api api;
	bool stream, usage;
	struct tenant *tenant;     /* NULL: no key */
	bool sure;                 /* The outcome says whether the request counts */
	struct cgn_buf right_body; /* The same question in the twin's API */
	struct cgn_buf body;       /* As it is sent: coded, perhaps */
	struct cgn_buf headers;
	bool old, chunks, expects; /* As in http_want */
	uint64_t began;            /* When it was sent */
	int must;                  /* Status with which the router must refuse it; 0: none */
	struct said right;
	int right_status;
};
/* Draw the request |id|; free it with request_fini. */
void request_draw(struct request *r, unsigned id);
void request_fini(struct request *r);
/* What to ask |p| on |port|: the twin, or the router. */
struct http_want request_want(const struct request *r, const struct part *p, uint16_t port);
