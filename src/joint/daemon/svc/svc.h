/* SPDX-License-Identifier: Apache-2.0 */
/* svc: the frame of every daemon's main(): flags, config with origins, --check, logs, signals, drain, reload,
 * sd_notify, the admin port.
 *
 *   --config FILE --set section.key=value (repeatable) --check --probe ready|alive --version --help, and the program's short
 *   flags (svc_flag)
 *
 * Order: load config (exit 3 on error) -> admin port -> start -> "ready" (sd_notify READY=1, one log line) ->
 * run. SIGPIPE and SIGXFSZ are ignored; RLIMIT_NOFILE is raised to its hard limit. Everything below runs on
 * svc_loop's thread, except svc_drained, which any thread may call.
 *
 * --check prints the effective config, then each problem of the files that a start would need; its exit status is
 * that of the first problem. SIGTERM, SIGINT: drain() is called and /readyz answers 503. svc_drained or the drain timeout ends the
 * process with exit 0; SIGINT during the drain ends it at once (130), a further SIGTERM changes nothing. SIGHUP: the config is loaded again. A
 * config with an error is logged, and the old one stays; changed keys that need a restart, and parts that were
 * refused, are logged. /config shows the values that run, and those that wait for a restart. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/pb/pb_tree.h"
#include "io/os/loop/loop.h"
#include "io/wire/http/head.h"
#include "joint/report/telemetry/telemetry.h"
#include "joint/report/tracing/tracing.h"
#include "joint/who/access/access.h"
#include "joint/who/audit/audit.h"
#include "joint/who/login/login.h"
#include "joint/who/oidc/oidc.h"
#include "policy/config/config.h"

struct svc;
struct tls_cfg;
struct tls_ctx;

/* Problems that a check or a reload found. */
struct svc_problems {
	struct cgn_buf text; /* Has one line for each, ended by a line end. */
	size_t n;
	enum cgn_code first; /* Code of the first one. */
};
/* Note |rc| if it is a failure, with the sentence of |err|. */
void svc_problem(struct svc_problems *p, cgn_rc rc, const struct cgn_err *err);
/* Let --check print |line|, which does not count as a problem. An empty |line| is left out. */
void svc_remark(struct svc_problems *p, struct cgn_str line);
/* Note each file of |tls| that cannot be read, or, if all can, why they cannot be used. The settings are |prefix|
 * ("security.", "cluster.etcd_") and ca_file, cert_file, key_file. Nothing is checked when none is set. */
void svc_check_tls(struct svc_problems *p, const char *prefix, const struct tls_cfg *tls);
/* The same for [security] and, with the state backend etcd, for etcd's files. */
void svc_check_cluster(struct svc_problems *p, const struct config *cfg);

/* {"listen", "router.listen", "ADDR", "..."}: --listen ADDR is short for --set router.listen=ADDR */
struct svc_flag {
	const char *flag, *key, *meta,
		*help; /* flag: without dashes. meta NULL: the flag takes no value and sets true. */
};

struct svc_admin_call;
struct svc_admin_reply {
	int status;                      /* 200 unless the route sets another. */
	const char *content_type;        /* application/json unless the route sets another. */
	const char *allow;               /* Methods that the path takes, with 405; NULL: no such field. */
	const struct http_field *fields; /* More fields of the head; constants. */
	size_t n_fields;
	unsigned retry_s; /* Seconds for the field Retry-After; 0: no such field. */
	struct cgn_buf body;
	struct svc_admin_call *call; /* For svc_admin_later. */
};
/* A route of the admin port, besides / /metrics /healthz /readyz /config /version. A GET route takes HEAD too. The program's routes come
 * first. */
struct svc_admin_route {
	/* A trailing '*' matches any rest, one in the middle a segment; the query does not count. |body|: at most 1 MiB, else 413. */
	const char *method, *path;
	void (*answer)(void *state, const struct http_head *h, struct cgn_str body,
		struct svc_admin_reply *r);
	enum identity_action action; /* The caller must be allowed to do this. */
	/* Instead of |answer|: a message of |type|, as JSON of the members that |select| lists (pb_json_select; NULL: all). */
	const ProtobufCMessageDescriptor *type;
	const char *select;
	/* Fill the message, which |t| made; false: |r| has the answer, or gets it later. */
	bool (*fill)(void *state, struct pb_tree *t, void *message, struct svc_admin_reply *r);
};
/* The route of a row of a program's documents.def. */
#define SVC_DOCUMENT(fill, path, action, Type, type, select, help) \
	{"GET", path, NULL, action, &cognitora__v1__##type##__descriptor, select, fill},
#define SVC_DOCUMENT_LIMIT ((size_t)64 << 20) /* Bytes of one message. */

/* A port of the program: the setting of its address, and the address; addr NULL: there is none. */
struct svc_port {
	const char *key;
	const char *(*addr)(const struct config *cfg);
};

struct svc_program {
	const char *name;    /* "cgn-router" */
	const char *summary; /* For --help. */
	const char *examples;
	const struct svc_flag *flags;
	size_t n_flags;
	/* Ports on which callers give orders. Where other machines reach one, it needs certificates or security.insecure;
	 * else the start is refused. */
	struct svc_port admin, grpc;
	cgn_nsec (*drain_timeout)(const struct config *cfg);
	/* Answers GET / in another way than by the list of paths, if it wants to (returns true); NULL: it does not. */
	bool (*root)(const struct http_head *h, struct svc_admin_reply *r);
	const struct svc_admin_route *routes;
	size_t n_routes;
	const struct metric_row *metrics; /* The program's own metrics, besides those of joint. */
	size_t n_metrics;
	/* Build everything, on svc_loop. On failure the process exits with the code's exit status and prints
	 * one line. */
	CGN_RC (*start)(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err);
	/* Serves --check: open and parse every file that start() needs and note each problem, without opening a
	 * port, writing anything or asking another machine. NULL: there is no such file. */
	void (*check)(const struct config *cfg, struct svc_problems *out);
	/* A flag that prints what the program makes of the configuration, and exits; flag NULL: none. */
	struct svc_print {
		const char *flag, *help;
		CGN_RC (*print)(const struct config *cfg, struct cgn_buf *out, struct cgn_err *err);
	} print;
	/* Apply the live keys of a new, valid config; what cannot be applied goes to svc_reload_refused. The
	 * previous |cfg| is valid until this returns. NULL: start's cfg stays valid, and SIGHUP changes only
	 * the log settings. */
	void (*reload)(void *state, const struct config *cfg);
	void (*drain)(void *state); /* Stop taking work; call svc_drained when nothing is open. */
	bool (*ready)(void *state, struct cgn_buf *why); /* For /readyz; NULL: ready once started. */
	void (*stop)(
		void **take); /* Close handles, join threads, free. The loop runs a last time afterwards. */
};

/* Return the process's exit status (0, 2 usage, 3 config, 7 port in use, ...). */
int svc_main(const struct svc_program *p, int argc, char **argv);
struct cgn_loop *svc_loop(struct svc *s);
struct tracing *svc_tracing(
	struct svc *s);                   /* NULL: the environment sets no collector. Closed after stop(). */
struct audit *svc_audit(struct svc *s);   /* The audit log; NULL: there is none. Closed after stop(). */
struct access *svc_access(struct svc *s); /* Says who may do what; freed after stop(). */
/* The identity provider; NULL: auth.oidc_issuer is not set. The returned provider lives until stop() has
 * returned. */
struct oidc *svc_oidc(struct svc *s);
/* Append the ports that security.insecure opens to everybody, "KEY ADDRESS, KEY ADDRESS"; nothing when it opens none. */
void svc_open_ports(const struct svc *s, struct cgn_buf *out);
struct telemetry *svc_telemetry(struct svc *s); /* The program's metrics; freed after stop(). */
/* Watch the certificate of |tls|, which the setting |key| names; call from start. The metric
 * cgn_tls_certificate_expiry_seconds shows when the certificate ends. When two weeks are left, or a third of
 * a life shorter than six weeks, a warning is logged each day. Does nothing for NULL or a context without a
 * certificate. At most 4. */
void svc_watch_certificate(struct svc *s, const char *key, struct tls_ctx *tls);
void svc_drained(struct svc *s);
/* A part of start that may take minutes. After SIGTERM or SIGINT svc_long_goes_on returns false: start then gives up with
 * CGN_CANCELLED, and the process exits with 0. svc_long_goes_on asks the service manager for more time too: call it often. */
void svc_long_begin(struct svc *s);
bool svc_long_goes_on(void *svc); /* A struct svc. */
void svc_long_end(struct svc *s);
/* Make the allocator give memory back to the system: that of large requests as soon as they end, that of small
 * ones within some seconds. Call from start, before threads allocate, in programs that hold bodies of any size. */
void svc_memory_tune(struct svc *s);
/* Report, during a reload, that a part of it was refused and what stays instead: svc.reloaded_in_part is then
 * logged instead of svc.reloaded. Does nothing when no reload is under way, so that it may be called wherever
 * such a failure is logged. */
void svc_reload_refused(struct svc *s, const char *why);
/* A reload is over when reload() has returned and each svc_reload_hold was followed by an svc_reload_release:
 * work on another thread belongs to it. */
void svc_reload_hold(struct svc *s);
void svc_reload_release(struct svc *s);
/* Answer an admin request with {"error":{"message","type","code"}}. */
void svc_admin_error(struct svc_admin_reply *r, int status, const char *code, const char *message);
/* Call from a route's answer: the answer comes later, from svc_admin_done on the same loop, and the contents
 * of |r| are dropped. If the client leaves first, or the port is closed, |gone| is called and the call is
 * invalid. */
struct svc_admin_call *svc_admin_later(struct svc_admin_reply *r, void (*gone)(void *user), void *user);
/* Answer with a message that |t| made, as a route's |select| says. */
void svc_admin_message(struct svc_admin_reply *r, const struct pb_tree *t, const void *message,
	const char *select);
struct svc_admin_reply svc_admin_reply_new(void);                            /* 200, JSON, no body. */
void svc_admin_done(struct svc_admin_call *call, struct svc_admin_reply *r); /* Frees the body of |r|. */
/* After svc_admin_later, instead of svc_admin_done: the answer's body comes in pieces. svc_admin_piece returns false
 * when the client is slow: send nothing more until |drained| is called. After svc_admin_end the call is invalid. */
void svc_admin_stream(struct svc_admin_call *call, int status, const struct http_field *fields, size_t n,
	void (*drained)(void *user));
bool svc_admin_piece(struct svc_admin_call *call, const void *p, size_t n);
void svc_admin_end(struct svc_admin_call *call);
void svc_admin_cut(struct svc_admin_call *call); /* Instead of svc_admin_end: the body is not whole. */
/* Return the address of the client. */
struct cgn_str svc_admin_peer(const struct svc_admin_call *call);
/* Return who asks; borrowed from |call|. */
const struct principal *svc_admin_caller(const struct svc_admin_call *call);
/* May the caller do |action| with |object|? Writes the refusal. */
bool svc_admin_may(struct svc_admin_reply *r, enum identity_action action, struct cgn_str object);
/* Does the request have the field "x-cgn-page", and come from no page of another site? Writes the refusal. */
bool svc_admin_from_page(const struct http_head *h, struct svc_admin_reply *r);
/* May this request change something? Returns true for a request from this machine, by an address or the name
 * localhost (and not by a name that another site may have pointed here), and svc_admin_from_page. Else writes the
 * refusal into |r|. */
bool svc_admin_may_change(const struct http_head *h, struct svc_admin_reply *r);
