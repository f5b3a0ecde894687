/* SPDX-License-Identifier: Apache-2.0 */
/* tracing, inside: the settings, the spans that wait, and the batch that is being sent. */
#pragma once
#include <pthread.h>

#include "base/core/arena.h"
#include "io/wire/http/client.h"
#include "joint/report/tracing/tracing.h"

#define TRACING_TAG     0x7ac10601U
#define TRACING_HEADERS 16

/* The values of the environment. */
struct tracing_settings {
	struct tracing_rules rules;
	bool on, grpc;
	char url[1024]; /* Where to send, with the path for HTTP. */
	char service[128];
	const char *resource; /* OTEL_RESOURCE_ATTRIBUTES; NULL: not set. */
	const char *ca_file;  /* NULL: the system's. */
	cgn_nsec timeout, delay;
	uint64_t queue, batch; /* Spans. */
	struct http_field headers[TRACING_HEADERS];
	size_t n_headers;
	struct cgn_arena arena; /* Memory of the headers. */
};
/* settings.c */
CGN_RC tracing_settings_read(const char *service, struct tracing_settings *out, struct cgn_err *err);
/* Call |take| for each "key=value" of a list with commas, percent-decoded; false: an entry has no '='. */
bool tracing_list_each(const char *list, struct cgn_arena *a,
	bool (*take)(void *user, struct cgn_str key, struct cgn_str value), void *user);

struct tracing {
	uint32_t tag;
	struct tracing_settings settings;
	struct cgn_loop *loop;
	struct cgn_timer timer;
	/* Spans that wait; all threads, under the lock. */
	pthread_mutex_t lock;
	struct cgn_buf spans; /* Packed, each with its tag and length. */
	size_t n;
	/* The batch that is on its way; the loop's. */
	struct cgn_buf sent; /* The request's body, kept to send it again; empty: none. */
	size_t n_sent;
	unsigned tries;
	cgn_nsec retry_at;    /* Time of the next try. */
	cgn_nsec asked_pause; /* By the last answer's Retry-After; 0: none. */
	cgn_nsec next_at;     /* Time of the next batch, unless it is full before. */
	struct http_client *client;
	struct http_call *call; /* NULL: none under way. */
	int status;             /* HTTP status of the answer. */
	uint64_t code;          /* The answer's gRPC status, as far as it came. */
	struct cgn_buf answer;
	struct cgn_buf resource; /* The packed ResourceSpans.resource, and the scope, with their tags. */
	char authority[300];
	char path[512];
	struct metric_cell *exported, *dropped, *failed;
};
/* pack.c */
/* Pack who sends; false: out of memory, or a list that can't be read. */
bool tracing_resource_pack(const struct tracing_settings *s, struct cgn_buf *out);
void tracing_span_pack(const struct tracing_span *s, int64_t wall_offset, struct cgn_buf *out);
/* Put |spans| into a request, with the prefix of gRPC or without. */
void tracing_request_pack(const struct tracing *t, struct cgn_str spans, struct cgn_buf *out);
