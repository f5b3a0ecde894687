/* SPDX-License-Identifier: Apache-2.0 */
/* probe: HTTP questions to many servers, asked at once, with an answer or a reason for each. One loop, one thread. */
#pragma once
#include "base/core/arena.h"
#include "base/core/buf.h"
#include "io/wire/http/client.h"

#define PROBES_MAX       512
#define PROBE_TIMEOUT    (3 * CGN_SEC) /* To connect, and again to the head of the answer. */
#define PROBE_BODY_LIMIT ((size_t)4 << 20)

struct probe {
	/* Set by the caller; texts live as long as the probe. */
	const char *addr, *authority, *path, *bearer, *body;
	bool tls, h2;
	const char *ca_file, *cert_file, *key_file; /* ca_file NULL: the system's authorities. */
	/* The answer. */
	int status;   /* 0: there was none; |why| says why. */
	int64_t date; /* Unix seconds of the field Date; 0: none. */
	int64_t at;   /* Unix seconds of this machine at the same time. */
	struct cgn_buf text;
	struct cgn_err why;
	/* Private. */
	struct probes *all;
	struct tls_ctx *ctx;
	struct http_client *client;
	struct http_call *call;
};
struct probes {
	struct probe list[PROBES_MAX];
	size_t n, left;
	struct cgn_loop *loop;
	struct cgn_timer limit;
};
/* Add a question to |addr|, "host:port"; NULL: there are PROBES_MAX. The caller sets its other fields. */
struct probe *probe_add(struct probes *p, const char *addr, const char *path);
/* Add a question to a URL, its path followed by |path|. NULL also when |url| is none. */
struct probe *probe_add_url(struct probes *p, struct cgn_arena *a, const char *url, const char *path);
/* Ask all. CGN_NO_MEMORY and the like: no loop can be made. */
CGN_RC probes_run(struct probes *p, struct cgn_err *err);
void probes_fini(struct probes *p);
