/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/who/login/login.h"

#include <stdlib.h>
#include <string.h>

#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "io/net/net/addr.h"
#include "io/os/disk/disk.h"
#include "policy/who/rate/rate.h"

#define LOGIN_TAG       0x10619001U
#define LOGIN_BUCKETS   4096
#define LOGIN_MAX_FIELD (JWT_MAX_BYTES + 1024) /* Bytes of a decoded Basic field. */

enum login_bucket { BUCKET_REQUESTS, BUCKET_WRONG };

struct login {
	uint32_t tag;
	struct cgn_loop *loop;
	struct access *access;
	struct oidc *oidc;      /* NULL: tokens are not taken. */
	struct signin *signin;  /* NULL: people cannot sign in. */
	struct auth_keys *keys; /* NULL: no file is set. */
	struct digest seed;
	struct rate_table *buckets;
};

static CGN_RC keys_read(const struct config *cfg, const struct digest *seed, struct auth_keys **out,
	struct cgn_err *err)
{
	const char *path = cfg->security.admin_keys_file;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why;
	*out = NULL;
	if (path == NULL)
		return CGN_OK;
	if (!cgn_ok(disk_read_file(path, LOGIN_MAX_FILE, &text, &why)))
		return CGN_FAIL(err, INVALID, "security.admin_keys_file: %s", why.msg);
	return auth_keys_parse(path, cgn_buf_view(&text), seed, out, err);
}

/* Sessions end with it: roles may have changed. */
static CGN_RC signin_follow(struct login *l, const struct config *cfg, struct cgn_err *err)
{
	struct signin *fresh = NULL;
	if (l->oidc != NULL && cfg->auth.oidc_client_id != NULL)
		CGN_TRY(signin_open(l->loop, l->oidc, cfg, &fresh, err));
	signin_close(&l->signin);
	l->signin = fresh;
	return CGN_OK;
}

CGN_RC login_open(struct cgn_loop *loop, const struct config *cfg, struct access *access, struct oidc *oidc,
	struct login **out, struct cgn_err *err)
{
	struct login *l = CGN_NEW(struct login);
	l->tag = LOGIN_TAG;
	l->loop = loop;
	l->access = access;
	l->oidc = oidc;
	cgn_random(&l->seed, sizeof l->seed);
	l->buckets = rate_table_new(LOGIN_BUCKETS);
	cgn_rc rc = keys_read(cfg, &l->seed, &l->keys, err);
	if (cgn_ok(rc))
		rc = signin_follow(l, cfg, err);
	if (!cgn_ok(rc)) {
		login_close(&l);
		return rc;
	}
	*out = l;
	return CGN_OK;
}

CGN_RC login_reload(struct login *l, const struct config *cfg, struct oidc *oidc, struct cgn_err *err)
{
	struct auth_keys *fresh = NULL;
	CGN_LIVE(l, LOGIN_TAG);
	l->oidc = oidc;
	CGN_TRY(keys_read(cfg, &l->seed, &fresh, err));
	auth_keys_unref(&l->keys);
	l->keys = fresh;
	return signin_follow(l, cfg, err);
}

void login_close(struct login **take)
{
	struct login *l = CGN_TAKE_LIVE(take, LOGIN_TAG);
	if (l == NULL)
		return;
	signin_close(&l->signin);
	auth_keys_unref(&l->keys);
	rate_table_free(&l->buckets);
	l->tag = 0;
	free(l);
}

/* Return the bucket of the address, as a keyed hash, so that addresses that share one cannot be chosen. */
static uint64_t bucket_of(const struct login *l, struct cgn_str from, enum login_bucket kind)
{
	char group[NET_ADDR_GROUP_MAX + 1];
	uint64_t key;
	group[0] = (char)('0' + (int)kind);
	net_addr_group(from, group + 1);
	struct digest d = digest_keyed(&l->seed, cgn_str_of(group));
	memcpy(&key, &d, sizeof key);
	return key | 1;
}

/* Take one unit of the address. On refusal set |*retry_s|. */
static bool bucket_take(struct login *l, struct cgn_str from, enum login_bucket kind, cgn_nsec now,
	unsigned *retry_s)
{
	const struct rate rate = kind == BUCKET_WRONG ? rate_per_minute(LOGIN_WRONG)
						      : rate_per_second(LOGIN_REQUESTS, LOGIN_BURST);
	if (identity_is_local(from))
		return true;
	struct rate_answer a = rate_table_take(l->buckets, bucket_of(l, from, kind), &rate, now, 1);
	if (!a.granted)
		*retry_s = (unsigned)(a.wait / CGN_SEC) + 1;
	return a.granted;
}

/* Write the key that the field shows to |out|; false: the field has another form. */
static bool key_shown(struct cgn_str authorization, struct cgn_buf *out)
{
	struct cgn_str rest = authorization, scheme = cgn_str_split(&rest, ' ');
	struct cgn_str bearer = auth_bearer(authorization);
	cgn_buf_str(out, bearer);
	if (bearer.n > 0)
		return !out->bad;
	if (!cgn_str_eq_nocase(scheme, CGN_STR("basic")) || !base64_get(out, rest) || out->bad)
		return false;
	const char *colon = out->n == 0 ? NULL : memchr(out->p, ':', out->n);
	if (colon == NULL)
		return false;
	size_t user = (size_t)(colon + 1 - out->p);
	memmove(out->p, out->p + user, out->n - user);
	out->n -= user;
	return true;
}

/* A role that is not configured here allows nothing. */
static uint64_t roles_of(const struct login *l, const struct auth_key *key)
{
	uint64_t bit = 0;
	if (key->role[0] == '\0')
		return (key->scopes & AUTH_ADMIN) != 0 ? IDENTITY_BIT(OPERATOR) : IDENTITY_BIT(USER);
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *table = access_roles(l->access);
	return identity_role_find(table, cgn_str_of(key->role), &bit) ? bit : 0;
}

/* Let |out| name the holder of the key. */
static bool key_find(const struct login *l, struct cgn_str key, struct login_caller *out)
{
	if (l->keys == NULL || !auth_keys_find(l->keys, key, &out->key) ||
		!auth_key_lives(&out->key, cgn_clock_wall_ms() / 1000))
		return false;
	out->who.kind = IDENTITY_KEY;
	out->who.name = cgn_str_of(out->key.id);
	out->who.tenant = cgn_str_of(out->key.tenant);
	out->who.roles = roles_of(l, &out->key);
	return true;
}

/* Let |out| name |out->holder|. */
static void holder_name(const struct login *l, struct login_caller *out)
{
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *table = access_roles(l->access);
	out->who.kind = IDENTITY_USER;
	out->who.name = cgn_str_of(out->holder.subject);
	out->who.tenant = cgn_str_of(out->holder.tenant);
	out->who.roles = claims_roles(&out->holder, table);
}

static CGN_RC token_find(const struct login *l, struct cgn_str token, struct login_caller *out,
	struct cgn_err *err)
{
	cgn_rc rc = oidc_judge(l->oidc, token, (struct cgn_str){0}, NULL, &out->holder, err);
	if (cgn_ok(rc))
		holder_name(l, out);
	return rc.code == CGN_NOT_FOUND ? CGN_RC_OF(CGN_UNAVAILABLE) : rc;
}

static CGN_RC shown_find(const struct login *l, struct cgn_str authorization, struct login_caller *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {.limit = LOGIN_MAX_FIELD};
	cgn_rc rc = CGN_OK;
	if (!key_shown(authorization, &key))
		rc = CGN_FAIL(err, UNAUTHENTICATED,
			"the field Authorization shows no key: Bearer KEY, or the key as password");
	else if (l->oidc != NULL && jwt_looks_like(cgn_buf_view(&key)))
		rc = token_find(l, cgn_buf_view(&key), out, err);
	else if (!key_find(l, cgn_buf_view(&key), out))
		rc = CGN_FAIL(err, UNAUTHENTICATED,
			"no key of security.admin_keys_file fits (Authorization: Bearer KEY, or the key as password)");
	if (key.p != NULL)
		crypto_wipe(key.p, key.cap);
	return rc;
}

bool login_may_try(struct login *l, struct cgn_str from, cgn_nsec now, unsigned *retry_s)
{
	CGN_LIVE(l, LOGIN_TAG);
	return bucket_take(l, from, BUCKET_WRONG, now, retry_s);
}

void login_right(struct login *l, struct cgn_str from, cgn_nsec now)
{
	const struct rate wrong = rate_per_minute(LOGIN_WRONG);
	CGN_LIVE(l, LOGIN_TAG);
	if (!identity_is_local(from))
		rate_table_settle(l->buckets, bucket_of(l, from, BUCKET_WRONG), &wrong, now, 1, 0);
}

struct signin *login_signin(struct login *l)
{
	CGN_LIVE(l, LOGIN_TAG);
	return l->signin;
}

static CGN_RC judge_shown(struct login *l, const struct login_shown *shown, cgn_nsec now,
	struct login_caller *out, struct cgn_err *err)
{
	if (!login_may_try(l, shown->from, now, &out->retry_s))
		return CGN_FAIL(err, OVERLOADED, "too many wrong keys from this address: wait %u s",
			out->retry_s);
	cgn_rc rc = shown_find(l, shown->authorization, out, err);
	if (rc.code != CGN_UNAUTHENTICATED) /* A right key costs nothing. */
		login_right(l, shown->from, now);
	return rc;
}

CGN_RC login_judge(struct login *l, const struct login_shown *shown, cgn_nsec now, struct login_caller *out,
	struct cgn_err *err)
{
	CGN_LIVE(l, LOGIN_TAG);
	*out = (struct login_caller){0};
	if (!bucket_take(l, shown->from, BUCKET_REQUESTS, now, &out->retry_s))
		return CGN_FAIL(err, OVERLOADED, "too many requests from this address: wait %u s",
			out->retry_s);
	access_peer(l->access, shown->from, shown->common_name, shown->uris, &out->who);
	if (out->who.kind != IDENTITY_NONE)
		return CGN_OK;
	if (shown->authorization.n == 0) {
		if (l->signin != NULL && signin_find(l->signin, shown->session, &out->holder))
			holder_name(l, out);
		return CGN_OK;
	}
	cgn_rc rc = judge_shown(l, shown, now, out, err);
	return out->who.local && rc.code == CGN_UNAUTHENTICATED ? CGN_OK : rc;
}
