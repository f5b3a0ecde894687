/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/invite/invite.h"

#include <string.h>

#include "base/codec/codec.h"
#include "policy/who/identity/identity.h"

#define TOKEN_VERSION "cgnj1"
#define KEEP_ENDED    3600 /* Seconds in which an invite that ended is told apart from one that never was. */

static bool part_ok(struct cgn_str s)
{
	return s.n <= INVITE_MAX_NAME && identity_uri_part_ok(s);
}

static bool id_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (!(s.p[i] >= '0' && s.p[i] <= '9') && !(s.p[i] >= 'a' && s.p[i] <= 'f'))
			return false;
	return s.n == INVITE_ID_DIGITS;
}

/* Read exactly 32 bytes of hex. */
static bool bytes_read(struct cgn_str text, uint8_t out[32])
{
	char room[33];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	if (text.n != 64 || !hex_get(&b, text) || b.n != 32)
		return false;
	memcpy(out, room, 32);
	return true;
}

static void bytes_put(struct cgn_buf *out, const uint8_t p[32])
{
	hex_put(out, (struct cgn_str){(const char *)p, 32});
}

/* ---- token ---- */

/* "host:port"; io/net/net checks more. */
static bool address_ok(struct cgn_str s)
{
	size_t colon = s.n;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] <= ' ' || s.p[i] > '~' || s.p[i] == '/' || s.p[i] == '"' || s.p[i] == '\\')
			return false;
		if (s.p[i] == ':')
			colon = i;
	}
	return s.n <= 300 && colon > 0 && colon + 1 < s.n;
}

CGN_RC invite_token_read(struct cgn_str text, struct invite_token *out, struct cgn_err *err)
{
	struct cgn_str rest = text;
	if (text.n > INVITE_MAX_TOKEN || !cgn_str_is(cgn_str_split(&rest, '/'), TOKEN_VERSION) ||
		rest.p == NULL)
		return CGN_FAIL(err, INVALID,
			"this is not a token: one begins with " TOKEN_VERSION
			"/; cgn-ctl node invite prints it");
	struct cgn_str secret, ca;
	out->role = cgn_str_split(&rest, '/');
	out->node = cgn_str_split(&rest, '/');
	out->id = cgn_str_split(&rest, '/');
	secret = cgn_str_split(&rest, '/');
	ca = cgn_str_split(&rest, '/');
	out->address = rest;
	const char *bad = !part_ok(out->role)                 ? "role"
		: out->node.n > 0 && !part_ok(out->node)      ? "node"
		: !id_ok(out->id)                             ? "id"
		: !bytes_read(secret, out->secret)            ? "secret"
		: !bytes_read(ca, out->ca)                    ? "CA"
		: rest.p == NULL || !address_ok(out->address) ? "address"
							      : NULL;
	if (bad != NULL)
		return CGN_FAIL(err, INVALID,
			"the token's %s is damaged: copy the whole line that cgn-ctl node invite printed",
			bad);
	return CGN_OK;
}

void invite_token_put(const struct invite_token *t, struct cgn_buf *out)
{
	cgn_buf_fmt(out, TOKEN_VERSION "/%.*s/%.*s/%.*s/", (int)t->role.n, t->role.p, (int)t->node.n,
		t->node.n > 0 ? t->node.p : "", (int)t->id.n, t->id.p);
	bytes_put(out, t->secret);
	cgn_buf_putz(out, "/");
	bytes_put(out, t->ca);
	cgn_buf_fmt(out, "/%.*s", (int)t->address.n, t->address.p);
}

/* ---- document: ID ROLE NODE|* SANS|* SECRET ENDS DAYS KEY|* ---- */

/* A word of a line; "*" is an empty one. */
static bool word_take(struct cgn_str *line, char *out, size_t cap)
{
	struct cgn_str w = line->p != NULL ? cgn_str_split(line, ' ') : (struct cgn_str){0};
	if (cgn_str_is(w, "*"))
		w.n = 0;
	else if (w.n == 0)
		return false;
	return w.n < cap && cgn_str_copyz(out, cap, w);
}

static bool number_take(struct cgn_str *line, uint64_t most, uint64_t *out)
{
	struct cgn_str w = line->p != NULL ? cgn_str_split(line, ' ') : (struct cgn_str){0};
	*out = 0;
	for (size_t i = 0; i < w.n; i++) {
		if (w.p[i] < '0' || w.p[i] > '9' || w.n > 12)
			return false;
		*out = *out * 10 + (uint64_t)(w.p[i] - '0');
	}
	return w.n > 0 && *out <= most;
}

/* A list of names with commas: no byte that ends a word or a line. */
static bool sans_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] > '~' || s.p[i] == '*')
			return false;
	return s.n <= INVITE_MAX_SANS;
}

static bool line_read(struct cgn_str line, struct invite *out)
{
	uint64_t ends = 0, days = 0;
	char key[65];
	*out = (struct invite){0};
	if (!word_take(&line, out->id, sizeof out->id) || !id_ok(cgn_str_of(out->id)) ||
		!word_take(&line, out->role, sizeof out->role) || !part_ok(cgn_str_of(out->role)) ||
		!word_take(&line, out->node, sizeof out->node) ||
		(out->node[0] != '\0' && !part_ok(cgn_str_of(out->node))) ||
		!word_take(&line, out->sans, sizeof out->sans) || !sans_ok(cgn_str_of(out->sans)) ||
		line.p == NULL || !bytes_read(cgn_str_split(&line, ' '), out->secret.b) ||
		!number_take(&line, (uint64_t)1 << 40, &ends) || !number_take(&line, 36500, &days) ||
		!word_take(&line, key, sizeof key) || line.p != NULL)
		return false;
	out->ends = (int64_t)ends;
	out->days = (uint32_t)days;
	out->claimed = key[0] != '\0';
	return !out->claimed || bytes_read(cgn_str_of(key), out->key.b);
}

/* Read the next line of |*rest|; lines that are none are passed over. False: there is no more. */
static bool invite_next(struct cgn_str *rest, struct invite *out)
{
	while (rest->p != NULL && rest->n > 0)
		if (line_read(cgn_str_split(rest, '\n'), out))
			return true;
	return false;
}

static const char *word_or_star(const char *s)
{
	return s[0] != '\0' ? s : "*";
}

static void line_put(const struct invite *i, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%s %s %s %s ", i->id, i->role, word_or_star(i->node), word_or_star(i->sans));
	bytes_put(out, i->secret.b);
	cgn_buf_fmt(out, " %lld %u ", (long long)i->ends, i->days);
	if (i->claimed)
		bytes_put(out, i->key.b);
	else
		cgn_buf_putz(out, "*");
	cgn_buf_putz(out, "\n");
}

/* Write the lines that are still of use, at most INVITE_MAX_INVITES. Returns how many. */
static size_t lines_copy(struct cgn_str text, int64_t now, struct cgn_buf *out)
{
	struct invite i;
	size_t n = 0;
	while (n < INVITE_MAX_INVITES && invite_next(&text, &i))
		if (i.ends + KEEP_ENDED > now) {
			line_put(&i, out);
			n++;
		}
	return n;
}

static bool invite_find(struct cgn_str text, struct cgn_str id, struct invite *out)
{
	while (invite_next(&text, out))
		if (cgn_str_is(id, out->id))
			return true;
	return false;
}

CGN_RC invite_add(struct cgn_str text, const struct invite *added, int64_t now, struct cgn_buf *out,
	struct cgn_err *err)
{
	struct invite other;
	if (!id_ok(cgn_str_of(added->id)))
		return CGN_FAIL(err, INVALID, "the invite's id is not %d hex digits", INVITE_ID_DIGITS);
	if (!part_ok(cgn_str_of(added->role)))
		return CGN_FAIL(err, INVALID, "\"%.80s\" cannot be a role: A-Z a-z 0-9 . _ - only",
			added->role);
	if (added->node[0] != '\0' && !part_ok(cgn_str_of(added->node)))
		return CGN_FAIL(err, INVALID, "\"%.80s\" cannot be a node's name: A-Z a-z 0-9 . _ - only",
			added->node);
	if (!sans_ok(cgn_str_of(added->sans)))
		return CGN_FAIL(err, INVALID, "\"%.80s\" cannot be names of a certificate", added->sans);
	if (added->ends <= now || added->days == 0)
		return CGN_FAIL(err, INVALID, "the invite would be over before it began");
	if (invite_find(text, cgn_str_of(added->id), &other))
		return CGN_FAIL(err, CONFLICT, "the id is taken; invite again");
	if (lines_copy(text, now, out) == INVITE_MAX_INVITES)
		return CGN_FAIL(err, OVERLOADED, "%d invites are open already; they end by themselves",
			INVITE_MAX_INVITES);
	line_put(added, out);
	return out->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for an invite") : CGN_OK;
}

CGN_RC invite_judge(struct cgn_str text, const struct invite_request *rq, int64_t now, struct invite *found,
	bool *again, struct cgn_err *err)
{
	*again = false;
	/* The sentence is the same for both, so that guessing tells no ids. */
	if (!invite_find(text, rq->id, found) ||
		!crypto_equal(&found->secret, &rq->secret, sizeof rq->secret))
		return CGN_FAIL(err, UNAUTHENTICATED,
			"no invite has this token: it is damaged, or it ended long ago; cgn-ctl node invite prints another one");
	if (found->ends <= now)
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the invite %s is over; cgn-ctl node invite prints another one", found->id);
	if (found->claimed && !crypto_equal(&found->key, &rq->key, sizeof rq->key))
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the invite %s was used by another machine; a token is for one. If that was not you, revoke what it got",
			found->id);
	if (!cgn_str_is(rq->role, found->role))
		return CGN_FAIL(err, FORBIDDEN, "the invite %s is for the role %s, not for %.*s", found->id,
			found->role, (int)rq->role.n, rq->role.p);
	if (found->node[0] != '\0' && !cgn_str_is(rq->node, found->node))
		return CGN_FAIL(err, FORBIDDEN, "the invite %s is for the node %s, not for %.*s", found->id,
			found->node, (int)rq->node.n, rq->node.p);
	*again = found->claimed;
	return CGN_OK;
}

void invite_claim(struct cgn_str text, const struct invite_request *rq, int64_t now, struct cgn_buf *out)
{
	struct invite i;
	while (invite_next(&text, &i)) {
		if (cgn_str_is(rq->id, i.id)) {
			i.claimed = true;
			i.key = rq->key;
			(void)cgn_str_copyz(i.node, sizeof i.node, rq->node);
		}
		if (i.ends + KEEP_ENDED > now)
			line_put(&i, out);
	}
}
