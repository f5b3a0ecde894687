/* SPDX-License-Identifier: Apache-2.0 */
/* question: a request of a client, drawn from the plan, and its right answer. */
#pragma once
#include "said.h"
#include "scenario.h"

/* The API in which a request is sent. */
enum api { API_COMPLETIONS, API_CHAT, API_MESSAGES, API_RESPONSES, API_OLLAMA, API_GENERATE, API_COUNT };

/* A route that gives no text. */
struct route {
	const char *method, *path;
	const char *body; /* The body with "%s" in the place of the prompt; NULL: none */
	int status;       /* The answer's */
	const char *has;  /* The answer is the router's own and has this; NULL: it is the engine's */
};

struct request {
	unsigned id;
	enum api api;
	const struct route *route; /* NULL: text is asked for */
	bool stream, usage, logprobs, picture, tool, forced;
	unsigned n, max;           /* Answers, and tokens of each */
	const char *model;         /* As the client names it */
	char stop[32];             /* Where it ends; empty: nowhere */
	struct tenant *tenant;     /* NULL: no key */
	bool sure;                 /* The outcome says whether the request counts */
	struct cgn_buf right_body; /* The same question in the twin's API */
	struct cgn_buf body;       /* As it is sent: coded, perhaps */
	struct cgn_buf headers;
	bool old, chunks, expects; /* As in http_want */
	uint64_t began;            /* When it was sent */
	int must;                  /* Status with which the router must refuse it; 0: none */
	struct said right;
	struct http_got right_got;
	struct said small; /* The answer of the smaller model, if that may answer */
	struct http_got small_got;
	bool may_refuse; /* The router may say that it does not answer in time */
};
/* Draw the request |id| and learn its right answer from the twin; free it with request_fini. */
void request_draw(struct request *r, unsigned id);
void request_fini(struct request *r);
/* The answer is the smaller model's: that is the right one. */
void request_take_small(struct request *r);
/* How the hook answered about the request. */
const struct hook_book *request_hook(const struct request *r);
/* Write the route and the unusual members of a request, for the story. */
void request_describe(const struct request *r, char *out, size_t cap);
/* Return the question as the client asks |p| on |port|: the twin, or the router. */
struct http_want request_want(const struct request *r, const struct part *p, uint16_t port);
