/* SPDX-License-Identifier: Apache-2.0 */
/* svc: the frame of every daemon's main(): flags, config with origins, --check, logs, signals, drain, reload,
 * sd_notify, the admin port.
 *
 *   --config FILE --set section.key=value (repeatable) --check --version --help and per program a few short
 *   flags of svc_flag
 *
 * Order: load config (exit 3 on error) -> admin port -> start -> "ready" (sd_notify READY=1, one log line) ->
 * run. SIGPIPE and SIGXFSZ are ignored, RLIMIT_NOFILE raised to its hard limit. Everything below runs on
 * svc_loop's thread but svc_drained, which any thread may call. SIGTERM, SIGINT: drain() and /readyz says
 * 503; svc_drained or the drain timeout ends it with exit 0 (a second signal: at once, 130/143). SIGHUP:
 * config is loaded again; a broken one is logged and the old one stays; keys that need a restart are
 * named. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "io/http/http.h"
#include "io/loop/loop.h"
#include "joint/telemetry/telemetry.h"
#include "policy/config/config.h"

struct svc;
struct tls_ctx;

/* {"listen", "router.listen", "ADDR", "..."}: --listen ADDR is short for --set router.listen=ADDR */
struct svc_flag {
	const char *flag, *key, *meta,
		*help; /* flag without its dashes; meta NULL: takes no value and sets true */
};

struct svc_admin_call;
struct svc_admin_reply {
	int status;               /* preset 200 */
	const char *content_type; /* preset application/json */
	struct cgn_buf body;
	struct svc_admin_call *call; /* for svc_admin_later */
};
/* on the admin port, beside /metrics /healthz /readyz /config /version; asked first */
struct svc_admin_route {
	/* a trailing '*' matches any tail; the query is not part of it. |body|: at most 1 MiB, else 413 */
	const char *method, *path;
	void (*answer)(void *state, const struct http_head *h, struct cgn_str body,
		struct svc_admin_reply *r);
};

struct svc_program {
	const char *name;    /* "cgn-router" */
	const char *summary; /* for --help */
	const char *examples;
	const struct svc_flag *flags;
	size_t n_flags;
	const char *(*admin_addr)(const struct config *cfg); /* NULL: no admin port */
	cgn_nsec (*drain_timeout)(const struct config *cfg);
	const struct svc_admin_route *routes;
	size_t n_routes;
	const struct metric_row *metrics; /* the program's own, beside those of joint */
	size_t n_metrics;
	/* Everything is built here, on svc_loop. On failure the process exits with the code's exit status and
	 * one clear line. */
	CGN_RC (*start)(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err);
	/* New config, already valid; |cfg| of the call before lives on until this one returned. Apply what is
	 * live only. NULL: cfg of start stays valid, SIGHUP changes the log level alone. */
	void (*reload)(void *state, const struct config *cfg);
	void (*drain)(void *state); /* stop taking work; svc_drained when nothing is open */
	bool (*ready)(void *state, struct cgn_buf *why); /* /readyz; NULL: ready once started */
	void (*stop)(
		void **take); /* close handles, join threads, free; the loop runs a last time afterwards */
};

/* Returns the process's exit status (SURFACE: 0, 2 usage, 3 config, 7 port in use, ...). */
int svc_main(const struct svc_program *p, int argc, char **argv);
struct cgn_loop *svc_loop(struct svc *s);
struct telemetry *svc_telemetry(struct svc *s); /* the program's metrics; freed after stop() */
/* From start: watch the certificate that |tls| shows, which the setting |key| names.
 * cgn_tls_certificate_expiry_seconds tells when it ends; when two weeks are left, or a third of its life
 * where that is less, the log does too, each day. NULL, or without one: nothing. At most 4. */
void svc_watch_certificate(struct svc *s, const char *key, struct tls_ctx *tls);
void svc_drained(struct svc *s);
/* Answer an admin request with {"error":{"message","type","code"}}. */
void svc_admin_error(struct svc_admin_reply *r, int status, const char *code, const char *message);
/* From within a route's answer: it comes later, from svc_admin_done on the same loop; what |r| holds is
 * dropped. When the client goes first, or the port is closed, |gone| is called, and the call is none any
 * more. */
struct svc_admin_call *svc_admin_later(struct svc_admin_reply *r, void (*gone)(void *user), void *user);
struct svc_admin_reply svc_admin_reply_new(void);                            /* 200, JSON, no body */
void svc_admin_done(struct svc_admin_call *call, struct svc_admin_reply *r); /* frees the body of |r| */
