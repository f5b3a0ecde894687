/* SPDX-License-Identifier: Apache-2.0 */
/* auth: API keys. The file has one line per key and no secret:
 *
 *   # comment
 *   ID sha256:HEX SCOPES CREATED [ATTRIBUTE=VALUE]... [NAME]
 *   3f9a12c4 sha256:9f86d0...0a08 chat,embed 2026-01-31T08:00:00Z laptop of Ann
 *   77c0de01 sha256:60303a...c9f4 chat 2026-01-31T08:00:00Z tenant=acme build server
 *   80a1b2c3 sha256:aa1e21...0b77 chat 2026-01-31T08:00:00Z expires=2026-07-31T08:00:00Z models=llama-*,qwen trial
 *
 * tenant=NAME groups keys: the settings of [tenants."acme"] apply to all of them together. A key without a tenant is its
 * own tenant, named by its id. expires=TIME ends it. locked=TIME: it is refused, since then. models=LIST: patterns of the
 * models that it may use. limits=LIST: its own rates, budgets and way through cascades (struct auth_limits). role=NAME: the role of its holder; without one, the scopes say what it may do.
 *
 * Keys have 256 random bits, so an attacker cannot guess them from their plain hash. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/digest/digest.h"
#include "policy/who/budget/budget.h"

struct config;

#define AUTH_HASH_BYTES   32
#define AUTH_ID_MAX       32
#define AUTH_NAME_MAX     64
#define AUTH_TENANT_MAX   64
#define AUTH_ROLE_MAX     64
#define AUTH_MODELS_MAX   1024 /* Bytes of the list of models. */
#define AUTH_LIMITS_MAX   512  /* Bytes of the list of limits. */
#define AUTH_NO_TENANT    "-"  /* The tenant of requests that need no key. */
#define AUTH_SECRET_BYTES 32   /* Bytes of randomness in a key. */
#define AUTH_SECRET_MAX   64   /* Bytes of a key's text, NUL included. */
#define AUTH_MAX_KEYS     4194304
#define AUTH_MAX_FILE     1073741824 /* Bytes of a file of keys. */

enum auth_scope {
	AUTH_CHAT = 1,  /* Chat, completions, responses, messages, tokenize. */
	AUTH_EMBED = 2, /* Embeddings, rerank, score. */
	AUTH_ADMIN = 4, /* Choose the node of a request. */
};

struct auth_key {
	char id[AUTH_ID_MAX + 1];
	uint8_t hash[AUTH_HASH_BYTES];
	unsigned scopes;
	char created[24];                 /* RFC 3339, UTC, seconds */
	char tenant[AUTH_TENANT_MAX + 1]; /* Empty: the key names no tenant. */
	char name[AUTH_NAME_MAX + 1];
	char role[AUTH_ROLE_MAX + 1];     /* Empty: the scopes count. */
	char models[AUTH_MODELS_MAX + 1]; /* Patterns (cgn_str_glob) with commas between them; empty: all. */
	char limits[AUTH_LIMITS_MAX + 1]; /* For auth_limits_parse; empty: none. */
	uint64_t expires, locked;         /* Unix seconds; 0: never. */
};

struct auth_keys; /* Immutable and counted: any thread may use it. */

/* CGN_INVALID names |file_name|, the line and the error: bad field, two keys of one id, more than
 * AUTH_MAX_KEYS or AUTH_MAX_FILE. Takes less than a second for a million keys.
 *
 * |seed| is random and secret, so that the time of a look-up says nothing about the hashes in the table.
 *
 * Memory: 86 bytes per key, its texts (id, tenant, name, role, models, limits), and 16 to 32 bytes of two tables. While the file is
 * parsed the text is in memory too. */
CGN_RC auth_keys_parse(const char *file_name, struct cgn_str text, const struct digest *seed,
	struct auth_keys **out, struct cgn_err *err);
void auth_keys_ref(struct auth_keys *k);
void auth_keys_unref(struct auth_keys **take);
size_t auth_keys_count(const struct auth_keys *k);
size_t auth_keys_bytes(const struct auth_keys *k); /* Memory that the set takes. */
/* Copy the key of line |i|, without comments, to |out|. */
void auth_keys_at(const struct auth_keys *k, size_t i, struct auth_key *out);
bool auth_keys_by_id(const struct auth_keys *k, struct cgn_str id,
	struct auth_key *out); /* Looks at all keys. */
/* Copy the key whose secret is |presented| to |out|; false: there is none. The time does not depend on the
 * number of keys, and says nothing about their hashes. */
bool auth_keys_find(const struct auth_keys *k, struct cgn_str presented, struct auth_key *out);
/* As auth_keys_find; notes that the key was used at |now| (Unix seconds), to about AUTH_USE_EVERY seconds. */
#define AUTH_USE_EVERY 10
bool auth_keys_use(struct auth_keys *k, struct cgn_str presented, uint64_t now, struct auth_key *out);
uint64_t auth_keys_used_at(const struct auth_keys *k,
	size_t i);                                  /* Last use of the key of line |i|; 0: none is known. */
uint64_t auth_keys_uses(const struct auth_keys *k); /* Grows with each note. */
/* Append a line "ID SECONDS" for each key whose last use is known, and read such lines: keys that the set does not have
 * and lines of another form are left out, and a later use stays. */
void auth_keys_used_put(const struct auth_keys *k, struct cgn_buf *out);
void auth_keys_used_read(struct auth_keys *k, struct cgn_str lines);
/* Append the line of |key|. */
void auth_key_format(const struct auth_key *key, struct cgn_buf *out);

/* Parse "chat,embed": at least one scope, each known. CGN_INVALID lists the known ones. */
CGN_RC auth_scopes_parse(struct cgn_str text, unsigned *out, struct cgn_err *err);
void auth_scopes_format(unsigned scopes, struct cgn_buf *out);

/* Is the key neither locked nor over at |unix_s|? */
bool auth_key_lives(const struct auth_key *key, uint64_t unix_s);
/* Return the key's tenant, or the key's id when it names none. */
const char *auth_key_tenant(const struct auth_key *key);

/* Does the list of patterns (auth_key.models) have one for |model|? An empty list has all. */
bool auth_models_have(struct cgn_str models, struct cgn_str model);
/* Limits of one key, beside its tenant's. 0: those of router.rate_limit. */
struct auth_limits {
	uint64_t rps_thousandths; /* Requests in 1000 seconds. */
	uint32_t tokens_per_minute;
	struct budget_set budgets;
	const char *
		cascade; /* "off" or "only-small", as X-Cgn-Cascade says it; NULL: as the client asks; a constant */
};
/* Read "rps=5,tokens_per_minute=6000,5USD/day,2Mtokens/month,cascade=off": each may be left out. CGN_INVALID
 * names the error. */
CGN_RC auth_limits_parse(struct cgn_str text, struct auth_limits *out, struct cgn_err *err);

/* May a tenant have that name: 1 to AUTH_TENANT_MAX visible characters, and not "-"? */
bool auth_tenant_ok(struct cgn_str name);
/* CGN_INVALID: a line cannot hold the texts of |key| (name, tenant, role, models, limits). */
CGN_RC auth_key_check(const struct auth_key *key, struct cgn_err *err);
/* Make a key from |entropy|: id, hash and created of |key|, which passes auth_key_check. |secret| gets the text for the
 * user, which is shown once. */
CGN_RC auth_key_make(const uint8_t entropy[AUTH_SECRET_BYTES], uint64_t created_unix, struct auth_key *key,
	char secret[AUTH_SECRET_MAX], struct cgn_err *err);
/* Read and write a time as lines have it, "2026-01-31T08:00:00Z". */
bool auth_time_parse(struct cgn_str text, uint64_t *unix_s);
void auth_time_put(uint64_t unix_s, struct cgn_buf *out);
/* Return the token of "Bearer TOKEN" (the scheme in any case); empty for another text. */
struct cgn_str auth_bearer(struct cgn_str authorization);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC auth_check_config(const struct config *c, struct cgn_err *err);
