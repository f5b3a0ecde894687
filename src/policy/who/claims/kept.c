/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/claims/kept.h"

#include <string.h>

#include "base/codec/codec.h"
#include "base/core/arena.h"
#include "base/json/json.h"

#define KEPT_ARENA ((size_t)65536)

void claims_kept_put(const struct claims_kept *h, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key_z(&j, "issuer", h->issuer);
	json_key_z(&j, "subject", h->who.subject);
	json_key_z(&j, "account", h->who.account);
	json_key_z(&j, "tenant", h->who.tenant);
	json_key_open(&j, "roles", '[');
	for (size_t i = 0; i < h->who.n_roles; i++)
		json_put_z(&j, h->who.role[i]);
	json_close(&j, ']');
	json_key_z(&j, "limits", h->who.limits);
	json_close(&j, '}');
}

/* Copy the text |key| of |v|. False: it is missing, too long, or has a NUL. */
static bool text_take(struct json_val v, const char *key, char *to, size_t cap, struct cgn_arena *a)
{
	struct json_val text;
	struct cgn_str s = json_get_str(v, key, a);
	return json_get(v, key, &text) && text.type == JSON_STRING &&
		(s.n == 0 || memchr(s.p, '\0', s.n) == NULL) && cgn_str_copyz(to, cap, s);
}

/* Copy the roles. False: there are none, too many, or one is not a text or too long. */
static bool roles_take(struct json_val v, struct claims_holder *who)
{
	struct json_val roles, one;
	if (!json_get(v, "roles", &roles) || roles.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(roles);
	while (json_next_elem(&it, &one)) {
		if (who->n_roles == CLAIMS_ROLES_MAX || one.type != JSON_STRING)
			return false;
		struct cgn_buf b = cgn_buf_over(who->role[who->n_roles], AUTH_ROLE_MAX);
		json_str_to(one, &b);
		if (b.bad || b.n == 0 || memchr(b.p, '\0', b.n) != NULL)
			return false;
		who->role[who->n_roles++][b.n] = '\0';
	}
	return who->n_roles > 0;
}

static bool object_read(struct cgn_str json, struct claims_kept *out)
{
	struct json_val v;
	struct cgn_arena a;
	struct claims_holder *who = &out->who;
	*out = (struct claims_kept){.issuer = ""};
	if (!cgn_ok(json_parse(json, &v, NULL, NULL)) || v.type != JSON_OBJECT)
		return false;
	cgn_arena_init(&a, KEPT_ARENA);
	bool fits = text_take(v, "issuer", out->issuer, sizeof out->issuer, &a) &&
		text_take(v, "subject", who->subject, sizeof who->subject, &a) &&
		text_take(v, "account", who->account, sizeof who->account, &a) &&
		text_take(v, "tenant", who->tenant, sizeof who->tenant, &a) &&
		text_take(v, "limits", who->limits, sizeof who->limits, &a) && roles_take(v, who);
	cgn_arena_fini(&a);
	return fits && out->issuer[0] != '\0' && who->subject[0] != '\0' && who->account[0] != '\0' &&
		who->tenant[0] != '\0';
}

void claims_kept_field(struct cgn_str json, struct cgn_buf *out)
{
	cgn_buf_putz(out, CLAIMS_KEPT_MARK);
	base64url_put(out, json);
}

bool claims_kept_unfold(struct cgn_str field, struct claims_kept *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {.limit = KEPT_ARENA};
	struct cgn_str mark = CGN_STR(CLAIMS_KEPT_MARK);
	if (field.n <= mark.n || memcmp(field.p, mark.p, mark.n) != 0)
		return false;
	return base64_get(&json, (struct cgn_str){field.p + mark.n, field.n - mark.n}) && !json.bad &&
		object_read(cgn_buf_view(&json), out);
}
