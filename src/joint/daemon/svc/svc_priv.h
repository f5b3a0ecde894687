/* SPDX-License-Identifier: Apache-2.0 */
/* svc, inside: the parts of the frame, each usable without the others. */
#pragma once
#include "base/core/arena.h"
#include "base/json/json.h"
#include "io/net/tls/crl.h"
#include "io/net/tls/tls.h"
#include "joint/daemon/svc/svc.h"

#define SVC_MAX_CONFIG     ((size_t)1 << 20) /* Bytes of a file, the limit of base/toml. */
#define SVC_MAX_BODY       ((size_t)1 << 20) /* Bytes of the body of an admin request. */
#define SVC_DEFAULT_CONFIG "/etc/cognitora/cognitora.toml"

/* args.c */
enum svc_mode { SVC_RUN, SVC_CHECK, SVC_PRINT, SVC_PROBE, SVC_VERSION, SVC_HELP };
struct svc_args {
	enum svc_mode mode;
	const char *config_file; /* Value of --config; NULL: not given. */
	const char *probe;       /* Value of --probe: "ready" or "alive". */
	const char **flags;      /* "section.key=value" */
	size_t n_flags;
	struct cgn_arena arena;
};
/* Parse the command line. CGN_INVALID: the message names the fault. Zero |args| before; call svc_args_fini
 * after, also after a failure. */
CGN_RC svc_args_parse(const struct svc_program *p, int argc, char **argv, struct svc_args *args,
	struct cgn_err *err);
void svc_args_fini(struct svc_args *args);
void svc_help(const struct svc_program *p, struct cgn_buf *out);

/* file.c: load --config, else $CGN_CONFIG, else the default file if it exists; with the environment and the
 * flags. */
CGN_RC svc_config_load(const struct svc_args *args, struct config **out, struct cgn_err *err);

/* probe.c: ask the running program at the admin address of |cfg|, for at most 3 s. |what|: "ready" or
 * "alive". CGN_OK: it is; else the sentence names the error. */
CGN_RC svc_probe(const struct svc_program *program, const struct config *cfg, const char *what,
	struct cgn_err *err);

/* ports.c */
/* CGN_INVALID: a port for orders is open to other machines without certificates and without security.insecure. */
CGN_RC svc_ports_check(const struct svc_program *p, const struct config *cfg, struct cgn_err *err);
void svc_ports_open(const struct svc_program *p, const struct config *cfg,
	struct cgn_buf *out); /* svc_open_ports */
/* Log the ports that security.insecure opens. */
void svc_ports_warn(const struct svc_program *p, const struct config *cfg);

/* notify.c: the datagrams of sd_notify(3). Without a manager that listens, nothing is sent. */
struct svc_notify {
	int fd;            /* -1: no manager listens. */
	cgn_nsec watchdog; /* Period of the signs of life; 0: none is due. */
	cgn_nsec extended; /* When the manager was last asked for more time. */
	bool stores;       /* The manager keeps descriptors ($FDSTORE, as systemd 254 sets it). */
};
/* Read and remove NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID and FDSTORE: child processes must not notify in this
 * process's name. */
void svc_notify_open(struct svc_notify *n);
void svc_notify_send(const struct svc_notify *n, const char *text);
/* Ask the manager for more time to start; sends at most one datagram a second. */
void svc_notify_starting(struct svc_notify *n, cgn_nsec now);
void svc_notify_reloading(const struct svc_notify *n, cgn_nsec now);
/* Let the manager keep the socket over a restart, and forget one that it kept under |name|. */
void svc_notify_store(const struct svc_notify *n, int fd);
void svc_notify_forget(const struct svc_notify *n, const char *name);
void svc_notify_close(struct svc_notify *n);

/* certs.c: everything runs on svc's loop; contexts are referenced. */
#define SVC_MAX_CERTS 4
struct svc_cert {
	const char *key;
	struct tls_ctx *tls;
	struct metric_cell *cell;
	/* When the log last warned (0: never), and the certificate's end that it named. Unix seconds. */
	uint64_t said, said_of;
};
struct svc_certs {
	struct cgn_timer timer;
	struct svc_cert cert[SVC_MAX_CERTS];
	size_t n;
};
bool svc_cert_ends_soon(const struct tls_validity *v, uint64_t now); /* |now|: Unix seconds. */
void svc_certs_init(struct svc_certs *cs, struct cgn_loop *l);
void svc_certs_add(struct svc_certs *cs, struct telemetry *t, const char *key, struct tls_ctx *tls);
void svc_certs_again(struct svc_certs *cs); /* The files were read again: check soon. */
void svc_certs_fini(struct svc_certs *cs);

/* crl.c: the list of security.crl_file, on svc's loop. Zero it before; without a list nothing happens. */
struct svc_crl {
	struct cgn_timer timer;
	struct tls_crl *list; /* NULL: none. */
	const char *file;     /* Borrowed from the configuration of the start. */
	struct metric_cell *cell_ends, *cell_revoked, *cell_failures, *cell_peers;
	uint64_t refused; /* Peers that the metric has. */
	uint64_t said;    /* When the log last warned of the list's end, Unix seconds; 0: never. */
};
CGN_RC svc_crl_open(struct svc_crl *c, struct cgn_loop *l, struct telemetry *t, const struct config *cfg,
	struct cgn_err *err);
/* Read the file again. On failure, which is logged and counted, the old list stays. */
CGN_RC svc_crl_reload(struct svc_crl *c, struct cgn_err *err);
void svc_crl_close(struct svc_crl *c);

/* follow.c: the files of security.cert_file, key_file and ca_file, on svc's loop. */
#define SVC_FOLLOWED 3
struct svc_stamp {
	uint64_t inode;
	int64_t bytes, second, nanosecond;
};
struct svc_follow {
	struct cgn_timer timer;
	void (*changed)(void *user);
	void *user;
	const char *file[SVC_FOLLOWED]; /* Borrowed from the configuration of the start; NULL: not set. */
	struct svc_stamp seen[SVC_FOLLOWED], taken[SVC_FOLLOWED]; /* At the last look; of the files in use. */
};
/* Call |changed| for other files, with security.follow_files; without it nothing happens. Call before the files are read:
 * what changes in between is noticed. */
void svc_follow_open(struct svc_follow *f, struct cgn_loop *l, const struct config *cfg,
	void (*changed)(void *user), void *user);
void svc_follow_close(struct svc_follow *f);

/* shortage.c: counts and logs that descriptors run out, on svc's loop. */
struct svc_shortage {
	struct cgn_timer timer;
	struct metric_cell *cell;
	uint64_t seen;    /* Rests of listeners that the metric has. */
	uint64_t said;    /* Rests that the log has. */
	cgn_nsec said_at; /* 0: never. */
};
void svc_shortage_init(struct svc_shortage *s, struct cgn_loop *l, struct telemetry *t);
void svc_shortage_fini(struct svc_shortage *s);

/* memory.c: gives free memory back, on svc's loop. */
struct svc_memory {
	struct cgn_timer timer;
	uint64_t freed; /* Free bytes in the allocator after the last time. */
};
void svc_memory_init(struct svc_memory *m, struct cgn_loop *l);
void svc_memory_start(struct svc_memory *m);
void svc_memory_fini(struct svc_memory *m);

/* admin.c */
struct svc_admin;
struct svc_admin_cfg {
	const struct svc_program *program;
	struct telemetry *telemetry;
	void *svc; /* Argument of |ready| and |configs|. */
	bool (*ready)(void *svc, struct cgn_buf *why);
	/* Get the configuration of the start, whose keys that are not live still run, and the newest one. */
	void (*configs)(void *svc, const struct config **boot, const struct config **loaded);
	void **state;        /* The program's state for its routes; *state is NULL until started. */
	struct audit *audit; /* NULL: there is none. */
	struct access *access;
	struct login *login; /* NULL: everybody may ask everything (tests). */
	struct tls_ctx *tls; /* NULL: in clear. */
	const char *machine; /* Name of this machine. */
};
CGN_RC svc_admin_open(struct cgn_loop *l, const char *addr, const struct svc_admin_cfg *cfg,
	struct svc_admin **out, struct cgn_err *err);
unsigned svc_admin_port(const struct svc_admin *a);
void svc_admin_close(struct svc_admin **take);
/* admit.c */
/* May the caller do |action|? Fills in |out|; on refusal |r| has the answer, and the audit log a line. */
bool svc_admin_admit(const struct svc_admin_cfg *cfg, const struct login_shown *shown, cgn_nsec now,
	enum identity_action action, struct login_caller *out, struct svc_admin_reply *r);
/* Did no page of another site make a browser send the request, also by a name that it pointed here (policy/who/site)? A
 * caller that showed a credential may use any name. Writes the refusal. |port|: the address of the port. */
bool svc_admin_site_fits(const struct svc_admin_cfg *cfg, const char *port, const struct http_head *h,
	const struct login_caller *caller, struct cgn_str from, struct svc_admin_reply *r);
/* The page alone. */
bool svc_admin_same_site(const struct http_head *h, struct svc_admin_reply *r);
/* check.c */
/* Note errors in the settings of the identity provider, which is not asked. */
void svc_check_provider(struct svc_problems *p, const struct config *cfg);

/* signin.c: people sign in to the page at the identity provider: /login, /login/done, /logout, /whoami. */
/* Is it one of these paths? They are open to everybody. */
bool svc_signin_path(struct cgn_str path);
void svc_signin_answer(const struct svc_admin_cfg *cfg, const struct http_head *h, struct svc_admin_reply *r);
/* Write the paths that answer, as members of an object, with their methods. */
void svc_signin_paths(const struct svc_admin_cfg *cfg, struct json_out *o);
/* |r| refuses because the caller showed nothing: send a browser to /login, if people can sign in. */
void svc_signin_offer(const struct svc_admin_cfg *cfg, struct svc_admin_call *call, const struct http_head *h,
	struct svc_admin_reply *r);
/* Memory that lives as long as the call. */
struct cgn_arena *svc_admin_arena(struct svc_admin_call *call);
/* Answer one request, without the wire around it. */
void svc_admin_answer(const struct svc_admin_cfg *cfg, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r);
