/* SPDX-License-Identifier: Apache-2.0 */
#include "auth_priv.h"

#include <string.h>
#include <time.h>

#include "base/codec/codec.h"
#include "base/core/utc.h"
#include "base/crypto/crypto.h"

#define SECRET_PREFIX "cgn_"
#define HASH_PREFIX   "sha256:"

static const char *const attributes[] = {"tenant", "expires", "locked", "limits", "models", "role"};

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
				"\"%.*s\" is not a scope; they are chat, embed and admin, joined by commas",
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

bool auth_tenant_ok(struct cgn_str s)
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

static bool digits_read(struct cgn_str s, size_t at, size_t n, int *out)
{
	*out = 0;
	for (size_t i = at; i < at + n; i++) {
		if (s.p[i] < '0' || s.p[i] > '9')
			return false;
		*out = *out * 10 + (s.p[i] - '0');
	}
	return true;
}

bool auth_time_parse(struct cgn_str s, uint64_t *unix_s)
{
	static const char shape[] = "YYYY-MM-DDTHH:MM:SSZ";
	struct tm t = {.tm_isdst = 0};
	if (s.n != sizeof shape - 1)
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (strchr("-T:Z", shape[i]) != NULL && s.p[i] != shape[i])
			return false;
	if (!digits_read(s, 0, 4, &t.tm_year) || !digits_read(s, 5, 2, &t.tm_mon) ||
		!digits_read(s, 8, 2, &t.tm_mday) || !digits_read(s, 11, 2, &t.tm_hour) ||
		!digits_read(s, 14, 2, &t.tm_min) || !digits_read(s, 17, 2, &t.tm_sec))
		return false;
	if (t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1 || t.tm_mday > 31 || t.tm_hour > 23 ||
		t.tm_min > 59 || t.tm_sec > 59)
		return false;
	t.tm_year -= 1900;
	t.tm_mon -= 1;
	time_t at = timegm(&t);
	*unix_s = at > 0 ? (uint64_t)at : 1; /* 0 would be never. */
	return true;
}

void auth_time_put(uint64_t unix_s, struct cgn_buf *out)
{
	char text[32];
	(void)cgn_utc_text((int64_t)unix_s, "%Y-%m-%dT%H:%M:%SZ", text, sizeof text);
	cgn_buf_putz(out, text);
}

static bool hash_parse(struct cgn_str s, uint8_t out[AUTH_HASH_BYTES])
{
	size_t lead = sizeof HASH_PREFIX - 1;
	if (!cgn_str_starts(s, HASH_PREFIX) || s.n != lead + 2 * AUTH_HASH_BYTES)
		return false;
	struct cgn_buf b = cgn_buf_over((char *)out, AUTH_HASH_BYTES);
	return hex_get(&b, (struct cgn_str){s.p + lead, s.n - lead}) && b.n == AUTH_HASH_BYTES;
}

static CGN_RC limits_read(struct auth_place at, struct cgn_str value, struct auth_key *key,
	struct cgn_err *err)
{
	struct auth_limits parsed;
	struct cgn_err why;
	if (value.n == 0)
		return CGN_FAIL(err, INVALID, "%s:%u: limits=: no limit follows", at.file, at.line);
	if (!cgn_ok(auth_limits_parse(value, &parsed, &why)))
		return CGN_FAIL(err, INVALID, "%s:%u: limits=: %s", at.file, at.line, why.msg);
	(void)cgn_str_copyz(key->limits, sizeof key->limits, value);
	return CGN_OK;
}

/* Take the value of ATTRIBUTE=VALUE. */
static CGN_RC attribute_read(struct auth_place at, struct cgn_str name, struct cgn_str value,
	struct auth_key *key, struct cgn_err *err)
{
	bool fine;
	if (cgn_str_is(name, "tenant"))
		fine = auth_tenant_ok(value) && cgn_str_copyz(key->tenant, sizeof key->tenant, value);
	else if (cgn_str_is(name, "role"))
		fine = is_plain(value, AUTH_ROLE_MAX) && cgn_str_copyz(key->role, sizeof key->role, value);
	else if (cgn_str_is(name, "models"))
		fine = is_plain(value, AUTH_MODELS_MAX) &&
			cgn_str_copyz(key->models, sizeof key->models, value);
	else if (cgn_str_is(name, "limits"))
		return limits_read(at, value, key, err);
	else
		fine = auth_time_parse(value, cgn_str_is(name, "expires") ? &key->expires : &key->locked);
	if (fine)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s:%u: %.*s= does not take this value; tenant, role and models are visible characters (at most %d, %d and %d; a tenant is not \"-\"), expires and locked times like 2026-01-31T08:00:00Z",
		at.file, at.line, CGN_STR_ARG(name), AUTH_TENANT_MAX, AUTH_ROLE_MAX, AUTH_MODELS_MAX);
}

static bool is_attribute(struct cgn_str name)
{
	for (size_t i = 0; i < CGN_COUNT(attributes); i++)
		if (cgn_str_is(name, attributes[i]))
			return true;
	return false;
}

/* Does |s| begin as an attribute does, "word="? A name must not: what a later version's attribute forbids would be allowed here. */
static bool begins_as_attribute(struct cgn_str s)
{
	size_t n = 0;
	while (n < s.n && ((s.p[n] >= 'a' && s.p[n] <= 'z') || s.p[n] == '_'))
		n++;
	return n > 0 && n < s.n && s.p[n] == '=';
}

/* Take the attributes from the beginning of |*rest|; the name is left. */
static CGN_RC attributes_read(struct auth_place at, struct cgn_str *rest, struct auth_key *key,
	struct cgn_err *err)
{
	while (true) {
		struct cgn_str left = cgn_str_trim(*rest), value = cgn_str_split(&left, ' ');
		bool valued = value.n > 0 && memchr(value.p, '=', value.n) != NULL;
		struct cgn_str name = cgn_str_split(&value, '=');
		if (!valued || !is_attribute(name))
			return CGN_OK;
		CGN_TRY(attribute_read(at, name, value, key, err));
		*rest = left.p != NULL ? left : (struct cgn_str){"", 0};
	}
}

CGN_RC auth_line_parse(struct auth_place at, struct cgn_str line, struct auth_key *out, struct cgn_err *err)
{
	struct cgn_err why;
	uint64_t made;
	struct cgn_str rest = line, id = cgn_str_split(&rest, ' '), hash = cgn_str_split(&rest, ' ');
	struct cgn_str scopes = cgn_str_split(&rest, ' '), created = cgn_str_split(&rest, ' ');
	*out = (struct auth_key){0};
	if (!is_plain(id, AUTH_ID_MAX))
		return CGN_FAIL(err, INVALID, "%s:%u: a key's id has 1 to %d visible characters", at.file,
			at.line, AUTH_ID_MAX);
	if (!hash_parse(hash, out->hash))
		return CGN_FAIL(err, INVALID, "%s:%u: the second field is sha256: and 64 hex digits", at.file,
			at.line);
	if (!cgn_ok(auth_scopes_parse(scopes, &out->scopes, &why)))
		return CGN_FAIL(err, INVALID, "%s:%u: %s", at.file, at.line, why.msg);
	if (!auth_time_parse(created, &made))
		return CGN_FAIL(err, INVALID, "%s:%u: the fourth field is a time like 2026-01-31T08:00:00Z",
			at.file, at.line);
	CGN_TRY(attributes_read(at, &rest, out, err));
	struct cgn_str name = cgn_str_trim(rest);
	if (begins_as_attribute(name))
		return CGN_FAIL(err, INVALID,
			"%s:%u: this version knows no attribute '%.*s'; is the key of a later one? Known are tenant, expires, locked, limits, models and role, and no name begins so",
			at.file, at.line, (int)((const char *)memchr(name.p, '=', name.n) - name.p), name.p);
	if (!name_is_ok(name))
		return CGN_FAIL(err, INVALID, "%s:%u: a key's name has at most %d printable bytes", at.file,
			at.line, AUTH_NAME_MAX);
	(void)cgn_str_copyz(out->id, sizeof out->id, id);
	(void)cgn_str_copyz(out->created, sizeof out->created, created);
	(void)cgn_str_copyz(out->name, sizeof out->name, name);
	return CGN_OK;
}

static void text_put(struct cgn_buf *out, const char *name, const char *value)
{
	if (value[0] != '\0')
		cgn_buf_fmt(out, " %s=%s", name, value);
}

static void time_put(struct cgn_buf *out, const char *name, uint64_t value)
{
	if (value == 0)
		return;
	cgn_buf_fmt(out, " %s=", name);
	auth_time_put(value, out);
}

void auth_key_format(const struct auth_key *key, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%s %s", key->id, HASH_PREFIX);
	hex_put(out, (struct cgn_str){(const char *)key->hash, AUTH_HASH_BYTES});
	cgn_buf_char(out, ' ');
	auth_scopes_format(key->scopes, out);
	cgn_buf_fmt(out, " %s", key->created);
	text_put(out, "tenant", key->tenant);
	text_put(out, "role", key->role);
	text_put(out, "models", key->models);
	text_put(out, "limits", key->limits);
	time_put(out, "expires", key->expires);
	time_put(out, "locked", key->locked);
	cgn_buf_fmt(out, "%s%s\n", key->name[0] != '\0' ? " " : "", key->name);
}

bool auth_key_lives(const struct auth_key *key, uint64_t unix_s)
{
	return key->locked == 0 && (key->expires == 0 || unix_s < key->expires);
}

const char *auth_key_tenant(const struct auth_key *key)
{
	return key->tenant[0] != '\0' ? key->tenant : key->id;
}

bool auth_models_have(struct cgn_str models, struct cgn_str model)
{
	struct cgn_str rest = models;
	if (rest.n == 0)
		return true;
	while (rest.p != NULL)
		if (cgn_str_glob(cgn_str_split(&rest, ','), model))
			return true;
	return false;
}

CGN_RC auth_key_check(const struct auth_key *key, struct cgn_err *err)
{
	struct cgn_str name = cgn_str_of(key->name);
	if (!name_is_ok(name) || begins_as_attribute(name))
		return CGN_FAIL(err, INVALID,
			"a key's name has at most %d printable bytes, and does not begin with a word and '=', which is an attribute",
			AUTH_NAME_MAX);
	if (key->tenant[0] != '\0' && !auth_tenant_ok(cgn_str_of(key->tenant)))
		return CGN_FAIL(err, INVALID,
			"a tenant has 1 to %d visible characters, no spaces, and is not \"-\"",
			AUTH_TENANT_MAX);
	if (key->role[0] != '\0' && !is_plain(cgn_str_of(key->role), AUTH_ROLE_MAX))
		return CGN_FAIL(err, INVALID, "a role has 1 to %d visible characters, no spaces",
			AUTH_ROLE_MAX);
	if (key->models[0] != '\0' && !is_plain(cgn_str_of(key->models), AUTH_MODELS_MAX))
		return CGN_FAIL(err, INVALID,
			"models are patterns with commas between them, without spaces: llama-*,qwen");
	struct auth_limits parsed;
	return auth_limits_parse(cgn_str_of(key->limits), &parsed, err);
}

CGN_RC auth_key_make(const uint8_t entropy[AUTH_SECRET_BYTES], uint64_t created_unix, struct auth_key *key,
	char secret[AUTH_SECRET_MAX], struct cgn_err *err)
{
	CGN_TRY(auth_key_check(key, err));
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf when = {0};
	auth_time_put(created_unix, &when);
	if (!cgn_str_copyz(key->created, sizeof key->created, cgn_buf_view(&when)) || when.n == 0)
		return CGN_FAIL(err, INVALID, "the time of creation does not fit a date");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = 2 * AUTH_SECRET_MAX};
	cgn_buf_putz(&text, SECRET_PREFIX);
	base64url_put(&text, (struct cgn_str){(const char *)entropy, AUTH_SECRET_BYTES});
	struct sha256 hash = crypto_sha256(cgn_buf_view(&text));
	CGN_MUST(cgn_str_copyz(secret, AUTH_SECRET_MAX, cgn_buf_view(&text)));
	crypto_wipe(text.p, text.cap);
	memcpy(key->hash, hash.b, AUTH_HASH_BYTES);
	for (size_t i = 0; i < 4; i++)
		(void)snprintf(key->id + 2 * i, 3, "%02x", hash.b[i]);
	return CGN_OK;
}

struct cgn_str auth_bearer(struct cgn_str authorization)
{
	struct cgn_str scheme = cgn_str_split(&authorization, ' ');
	if (authorization.p == NULL || !cgn_str_eq_nocase(scheme, CGN_STR("bearer")))
		return (struct cgn_str){NULL, 0};
	return cgn_str_trim(authorization);
}
