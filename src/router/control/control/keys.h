/* SPDX-License-Identifier: Apache-2.0 */
/* keys: the API keys of the router, loaded from their file again whenever it changes, and when each was used last. On the
 * control loop. */
#pragma once
#include "joint/daemon/svc/svc.h"
#include "policy/who/auth/auth.h"

struct router;
struct router_keys_job; /* keys.c */
struct statefile;

/* The API keys in use. */
struct router_keys {
	struct auth_keys *set;       /* A reference; NULL: none were loaded. */
	struct digest seed;          /* Random, for all sets of this run. */
	uint64_t fingerprint;        /* Path, inode, size and time of the file that was tried last. */
	uint64_t seen;               /* The same at the last look: a file is loaded once two looks agree. */
	struct cgn_timer look;       /* The second look at a changed file. */
	bool again;                  /* A reload came during |job|: load once more after it. */
	struct router_keys_job *job; /* The load that runs; NULL: none. */
	bool reload_waits;           /* A reload of the configuration ends after |job|. */
	/* key_use.c */
	struct statefile *use_file; /* NULL: authentication was off at the start. */
	struct cgn_timer use_timer;
	uint64_t uses_written;
};

/* Load the key file before the workers run, if there is one. CGN_INVALID: it cannot be used. */
CGN_RC router_keys_open(struct router *r, struct cgn_err *err);
/* Log that other machines may use the gateway without a key, where that is so. */
void router_gateway_warn(const struct config *cfg);
/* Is there a file of keys that requests are checked against? */
bool router_wants_keys(const struct config *cfg);
void router_keys_close(struct router *r);
/* Remember when keys were used last in the file |path|; after router_keys_open. */
void router_key_use_open(struct router *r, const char *path);
void router_key_use_close(struct router *r); /* Before router_keys_close. */
/* Note the last uses that |old| has in |fresh|. Any thread. */
CGN_RC router_key_use_move(const struct auth_keys *old, struct auth_keys *fresh, struct cgn_err *err);
void router_keys_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__KeyUses *to);
/* Read the file as router_keys_open does, and drop the keys. */
CGN_RC router_keys_check(const struct config *cfg, struct cgn_err *err);
/* Load the file and the rules for a reload of the configuration, which lasts until they are loaded. */
void router_keys_reload(struct router *r);
/* Load the key file on the pool if it is another one than the last that was tried, or with |force|; then publish it
 * with new rules. Without |force| only a file that has not changed since the call before is loaded: an editor that
 * empties the file and writes it again must not lock everybody out. Until then, and when the file is refused, the
 * old keys stay. True: a load runs, and rules follow it. */
bool router_keys_refresh(struct router *r, bool force);
