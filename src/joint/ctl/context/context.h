/* SPDX-License-Identifier: Apache-2.0 */
/* context: named sets of addresses and certificates, so that they need not be given to each verb. They are in
 * one TOML file: $CGN_CONTEXTS, else cognitora/contexts.toml in $XDG_CONFIG_HOME, else in ~/.config.
 *
 * A flag beats an environment variable ($CGN_ROUTER, $CGN_KV), which beats the context. The context is that of
 * --context, else of $CGN_CONTEXT, else the current one of the file; an empty name means none. */
#pragma once
#include "base/core/arena.h"
#include "joint/ctl/line/line.h"

#define CONTEXTS_MAX 256

enum context_member {
	CONTEXT_ROUTER,
	CONTEXT_KV,
	CONTEXT_CA,
	CONTEXT_CERT,
	CONTEXT_KEY,
	CONTEXT_CRL,
	CONTEXT_MEMBERS
};

struct context {
	const char *name;
	const char *value[CONTEXT_MEMBERS]; /* NULL: not set. */
};

/* The file's contents. All strings live in |arena|. */
struct contexts {
	struct cgn_arena arena;
	const char *path;
	const char *current; /* NULL: none. */
	struct context list[CONTEXTS_MAX];
	size_t n;
};

/* Return the member's key in the file: "router". */
const char *context_key(enum context_member m);
/* Read the file; one that does not exist gives no contexts. CGN_FORBIDDEN when others than its owner may write to
 * it, or when its owner is neither this user nor root: it says which router gets the orders. CGN_INVALID with the
 * place in the file. Free with contexts_free, also after a failure. */
CGN_RC contexts_load(struct contexts **out, struct cgn_err *err);
/* Replace the file, with mode 0600, and create its folder. */
CGN_RC contexts_save(const struct contexts *c, struct cgn_err *err);
void contexts_free(struct contexts **take);
struct context *context_find(struct contexts *c, const char *name); /* NULL: there is none. */
/* Return the name in --context or $CGN_CONTEXT; "": no context is wanted; NULL: the current one is. */
const char *context_named(const struct ctl_args *a);
/* Return the context that the verb uses; NULL in |*out|: none. CGN_NOT_FOUND for a name that the file does not
 * have; CGN_FORBIDDEN when others may read its private key. */
CGN_RC context_in_use(const struct ctl_args *a, struct contexts *c, const struct context **out,
	struct cgn_err *err);
