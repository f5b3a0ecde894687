/* SPDX-License-Identifier: Apache-2.0 */
/* redis: a client that runs one script on one Redis server (5 or newer), for one loop. Calls are pipelined on
 * one connection; each has a deadline. When the server does not answer in time or answers badly (it is away,
 * stopped, loading, read-only, out of memory, wants another password, or is not Redis), the client becomes
 * not ready: calls fail at once, and the client reconnects by itself with backoff.
 *
 * Bounds: REDIS_MAX_CALLS calls in flight, each of at most REDIS_MAX_CALL bytes; 64 KiB of unread replies. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/net/tls/tls.h"
#include "io/os/loop/loop.h"

#define REDIS_MAX_CALLS  4096
#define REDIS_MAX_CALL   ((size_t)8192) /* Bytes of keys and arguments, as they are written. */
#define REDIS_MAX_VALUES 64             /* Integers in an answer. */

/* redis://[[user][:password]@]host[:port][/db], rediss:// for TLS, unix:/path[?db=N]. User and password may
 * be %-escaped. */
struct redis_url {
	bool tls;
	char addr[256];     /* Address in the form that io/net/net takes. */
	char user[64];      /* Empty: the default user. */
	char password[256]; /* Empty: no password. */
	uint32_t db;
};
/* Returns CGN_INVALID for a bad URL; the message never contains the password. */
CGN_RC redis_url_parse(const char *text, struct redis_url *out, struct cgn_err *err);

struct redis;
struct redis_cfg {
	struct redis_url url;
	struct tls_ctx *tls; /* For rediss://. Borrowed; must outlive the client. */
	/* The script's text; it answers with at most REDIS_MAX_VALUES integers. Must outlive the client. */
	const char *script;
	/* A key that is written with a lifetime of one second, to check that writing is possible; copied. */
	const char *probe;
	cgn_nsec timeout; /* Timeout of a call; 0: 50 ms. */
	/* Called once at each change: the client is ready, or it is not (|why|). May be NULL. */
	void (*on_state)(void *user, bool ready, const struct cgn_err *why);
	void *user;
};
/* Connect at once, and reconnect whenever the connection is lost. */
struct redis *redis_new(struct cgn_loop *l, const struct redis_cfg *cfg);
/* End the client. Calls in flight are done with CGN_CANCELLED before this returns; on_state is not called. */
void redis_free(struct redis **take);
bool redis_is_ready(const struct redis *r);

struct redis_answer {              /* Borrowed until the |done| callback returns. */
	const struct cgn_err *err; /* CGN_FINE; CGN_DEADLINE; CGN_UNAVAILABLE; CGN_CANCELLED */
	const int64_t *values;
	size_t n;
};
typedef void redis_done_fn(void *user, const struct redis_answer *a);
/* Run the script. |done| is called once, never inline, and may be NULL. Without |done| call: CGN_UNAVAILABLE
 * when not ready, CGN_OVERLOADED when too many calls are in flight, CGN_TOO_LARGE. */
CGN_RC redis_run(struct redis *r, const struct cgn_str *keys, size_t n_keys, const struct cgn_str *args,
	size_t n_args, redis_done_fn *done, void *user);
