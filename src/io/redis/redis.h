/* SPDX-License-Identifier: Apache-2.0 */
/* redis: a client that runs one script on one Redis server (5 or newer), for one loop. Calls are pipelined on
 * one connection; each has a deadline. What keeps the server from answering in time and well (it is away,
 * stopped, loading, read-only, out of memory, wants another password, is no Redis) makes the client not
 * ready: calls fail at once then, nobody waits, and it comes back by itself with backoff.
 *
 * Bounds: REDIS_MAX_CALLS calls under way, of at most REDIS_MAX_CALL bytes; 64 KiB of unread replies. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/loop/loop.h"
#include "io/tls/tls.h"

#define REDIS_MAX_CALLS  4096
#define REDIS_MAX_CALL   ((size_t)2048) /* of keys and arguments, as they are written */
#define REDIS_MAX_VALUES 16             /* of an answer */

/* redis://[[user][:password]@]host[:port][/db], rediss:// for TLS, unix:/path[?db=N]. User and password may
 * be %-escaped. */
struct redis_url {
	bool tls;
	char addr[256];     /* as io/net takes it */
	char user[64];      /* empty: the default one */
	char password[256]; /* empty: none */
	uint32_t db;
};
/* CGN_INVALID; the message never has the password. */
CGN_RC redis_url_parse(const char *text, struct redis_url *out, struct cgn_err *err);

struct redis;
struct redis_cfg {
	struct redis_url url;
	struct tls_ctx *tls; /* of rediss://; borrowed, and must outlive the client */
	const char *script;  /* answers with at most REDIS_MAX_VALUES integers; must outlive the client */
	/* a key that is written, for a second, to see that writing is possible; copied */
	const char *probe;
	cgn_nsec timeout; /* of a call; 0: 50 ms */
	/* It is ready, or (|why|) is not any more or not yet: once at each change. May be NULL. */
	void (*on_state)(void *user, bool ready, const struct cgn_err *why);
	void *user;
};
/* Connects at once, and again whenever it must. */
CGN_RC redis_new(struct cgn_loop *l, const struct redis_cfg *cfg, struct redis **out, struct cgn_err *err);
/* Calls under way are done with CGN_CANCELLED before it returns; on_state is not called. */
void redis_free(struct redis **take);
bool redis_is_ready(const struct redis *r);

struct redis_answer {              /* borrowed for the call of done */
	const struct cgn_err *err; /* CGN_FINE; CGN_DEADLINE; CGN_UNAVAILABLE; CGN_CANCELLED */
	const int64_t *values;
	size_t n;
};
typedef void redis_done_fn(void *user, const struct redis_answer *a);
/* Run the script. |done| once, never inline. CGN_UNAVAILABLE: not ready; CGN_OVERLOADED: too many calls under
 * way; CGN_TOO_LARGE; CGN_NO_MEMORY; then |done| is not called. |done| NULL: nobody wants to know. */
CGN_RC redis_run(struct redis *r, const struct cgn_str *keys, size_t n_keys, const struct cgn_str *args,
	size_t n_args, redis_done_fn *done, void *user);
