/* SPDX-License-Identifier: Apache-2.0 */
#include "auth_priv.h"

#include <string.h>
#include <time.h>

#include "base/codec/codec.h"
#include "base/crypto/crypto.h"

#define SECRET_PREFIX "cgn_"
#define HASH_PREFIX   "sha256:"
#define TENANT_PREFIX "tenant="

static const struct {
	const char *text;
	unsigned bit;
} scope_rows[] = {{"chat", AUTH_CHAT}, {"embed", AUTH_EMBED}, {"admin", AUTH_ADMIN}};

CGN_RC auth_scopes_parse(struct cgn_str text, unsigned *out, struct cgn_err *err)
{
	unsigned scopes = 0;
	struct cgn_str rest = text;
	do {
		struct cgn_str one = cgn_str_split(&rest, ',');
		unsigned bit = 0;
		for (size_t i = 0; i < CGN_COUNT(scope_rows); i++)
			bit |= cgn_str_is(one, scope_rows[i].text) ? scope_rows[i].bit : 0;
		if (bit == 0)
			return CGN_FAIL(err, INVALID,
				"\"%.*s\" is no scope; they are chat, embed and admin, joined by commas",
				CGN_STR_ARG(one));
		scopes |= bit;
	} while (rest.p != NULL);
	*out = scopes;
	return CGN_OK;
}

void auth_scopes_format(unsigned scopes, struct cgn_buf *out)
{
	const char *comma = "";
	for (size_t i = 0; i < CGN_COUNT(scope_rows); i++) {
		if ((scopes & scope_rows[i].bit) == 0)
			continue;
		cgn_buf_putz(out, comma);
		cgn_buf_putz(out, scope_rows[i].text);
		comma = ",";
	}
}

static bool is_plain(struct cgn_str s, size_t max)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] > '~')
			return false;
	return s.n > 0 && s.n <= max;
}

static bool tenant_is_ok(struct cgn_str s)
{
	return is_plain(s, AUTH_TENANT_MAX) && !cgn_str_is(s, AUTH_NO_TENANT);
}

static bool name_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.p[i] < ' ' || s.p[i] == 0x7f)
			return false;
	return s.n <= AUTH_NAME_MAX && cgn_utf8_valid(s.p, s.n);
}

/* YYYY-MM-DDTHH:MM:SSZ */
static bool is_time(struct cgn_str s)
{
	static const char shape[] = "0000-00-00T00:00:00Z";
	if (s.n != sizeof shape - 1)
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (shape[i] == '0' ? s.p[i] < '0' || s.p[i] > '9' : s.p[i] != shape[i])
			return false;
	return true;
}

static bool hash_parse(struct cgn_str s, uint8_t out[AUTH_HASH_BYTES])
{
	size_t lead = sizeof HASH_PREFIX - 1;
	if (!cgn_str_starts(s, HASH_PREFIX) || s.n != lead + 2 * AUTH_HASH_BYTES)
		return false;
	struct cgn_buf b = cgn_buf_over((char *)out, AUTH_HASH_BYTES);
	return hex_get(&b, (struct cgn_str){s.p + lead, s.n - lead}) && b.n == AUTH_HASH_BYTES;
}

/* Take "tenant=NAME" from the beginning of |*rest|. A name alone is the format of lines without a tenant. */
static struct cgn_str tenant_split(struct cgn_str *rest)
{
	struct cgn_str text = cgn_str_trim(*rest), empty = {NULL, 0};
	if (!cgn_str_starts(text, TENANT_PREFIX))
		return empty;
	struct cgn_str word = cgn_str_split(&text, ' ');
	*rest = text.p != NULL ? text : empty;
	return (struct cgn_str){word.p + sizeof TENANT_PREFIX - 1, word.n - (sizeof TENANT_PREFIX - 1)};
}

CGN_RC auth_line_parse(struct auth_place at, struct cgn_str line, struct auth_key *out, struct cgn_err *err)
{
	struct cgn_err why;
	struct cgn_str rest = line, id = cgn_str_split(&rest, ' '), hash = cgn_str_split(&rest, ' ');
	struct cgn_str scopes = cgn_str_split(&rest, ' '), created = cgn_str_split(&rest, ' ');
	struct cgn_str tenant = tenant_split(&rest), name = cgn_str_trim(rest);
	*out = (struct auth_key){0};
	if (!is_plain(id, AUTH_ID_MAX))
		return CGN_FAIL(err, INVALID, "%s:%u: a key's id has 1 to %d visible characters", at.file,
			at.line, AUTH_ID_MAX);
	if (!hash_parse(hash, out->hash))
		return CGN_FAIL(err, INVALID, "%s:%u: the second field is sha256: and 64 hex digits", at.file,
			at.line);
	if (!cgn_ok(auth_scopes_parse(scopes, &out->scopes, &why)))
		return CGN_FAIL(err, INVALID, "%s:%u: %s", at.file, at.line, why.msg);
	if (!is_time(created))
		return CGN_FAIL(err, INVALID, "%s:%u: the fourth field is a time like 2026-01-31T08:00:00Z",
			at.file, at.line);
	if (tenant.p != NULL && !tenant_is_ok(tenant))
		return CGN_FAIL(err, INVALID,
			"%s:%u: a tenant has 1 to %d visible characters and is not \"-\": tenant=NAME",
			at.file, at.line, AUTH_TENANT_MAX);
	if (!name_is_ok(name))
		return CGN_FAIL(err, INVALID, "%s:%u: a key's name has at most %d printable bytes", at.file,
			at.line, AUTH_NAME_MAX);
	(void)cgn_str_copyz(out->id, sizeof out->id, id);
	(void)cgn_str_copyz(out->created, sizeof out->created, created);
	(void)cgn_str_copyz(out->tenant, sizeof out->tenant, tenant);
	(void)cgn_str_copyz(out->name, sizeof out->name, name);
	return CGN_OK;
}

void auth_key_format(const struct auth_key *key, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%s %s", key->id, HASH_PREFIX);
	hex_put(out, (struct cgn_str){(const char *)key->hash, AUTH_HASH_BYTES});
	cgn_buf_char(out, ' ');
	auth_scopes_format(key->scopes, out);
	cgn_buf_fmt(out, " %s", key->created);
	if (key->tenant[0] != '\0')
		cgn_buf_fmt(out, " " TENANT_PREFIX "%s", key->tenant);
	cgn_buf_fmt(out, "%s%s\n", key->name[0] != '\0' ? " " : "", key->name);
}

const char *auth_key_tenant(const struct auth_key *key)
{
	return key->tenant[0] != '\0' ? key->tenant : key->id;
}

CGN_RC auth_key_make(const uint8_t entropy[AUTH_SECRET_BYTES], unsigned scopes, uint64_t created_unix,
	struct cgn_str name, struct cgn_str tenant, struct auth_key *out, char secret[AUTH_SECRET_MAX],
	struct cgn_err *err)
{
	time_t at = (time_t)created_unix;
	struct tm tm;
	*out = (struct auth_key){.scopes = scopes};
	name = cgn_str_trim(name);
	if (!name_is_ok(name) || cgn_str_starts(name, TENANT_PREFIX))
		return CGN_FAIL(err, INVALID,
			"a key's name has at most %d printable bytes, and does not begin with " TENANT_PREFIX,
			AUTH_NAME_MAX);
	if (tenant.n > 0 && !tenant_is_ok(tenant))
		return CGN_FAIL(err, INVALID,
			"a tenant has 1 to %d visible characters, no spaces, and is not \"-\"",
			AUTH_TENANT_MAX);
	if (gmtime_r(&at, &tm) == NULL ||
		strftime(out->created, sizeof out->created, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
		return CGN_FAIL(err, INVALID, "the time of creation does not fit a date");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = 2 * AUTH_SECRET_MAX};
	cgn_buf_putz(&text, SECRET_PREFIX);
	base64url_put(&text, (struct cgn_str){(const char *)entropy, AUTH_SECRET_BYTES});
	struct sha256 hash = crypto_sha256(cgn_buf_view(&text));
	bool fits = !text.bad && cgn_str_copyz(secret, AUTH_SECRET_MAX, cgn_buf_view(&text));
	if (text.p != NULL)
		crypto_wipe(text.p, text.cap);
	if (!fits)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a key");
	memcpy(out->hash, hash.b, AUTH_HASH_BYTES);
	for (size_t i = 0; i < 4; i++)
		(void)snprintf(out->id + 2 * i, 3, "%02x", hash.b[i]);
	(void)cgn_str_copyz(out->tenant, sizeof out->tenant, tenant);
	(void)cgn_str_copyz(out->name, sizeof out->name, name);
	return CGN_OK;
}

struct cgn_str auth_bearer(struct cgn_str authorization)
{
	struct cgn_str scheme = cgn_str_split(&authorization, ' ');
	if (authorization.p == NULL || !cgn_str_eq_nocase(scheme, CGN_STR("bearer")))
		return (struct cgn_str){NULL, 0};
	return cgn_str_trim(authorization);
}
