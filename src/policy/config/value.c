/* SPDX-License-Identifier: Apache-2.0 */
/* config: one value, from text and to TOML. */
#include <math.h>
#include <stdlib.h>

#include "base/json/json.h"
#include "policy/config/config_priv.h"

struct unit {
	const char *name;
	uint64_t factor;
};
/* A value is printed in the first unit that divides it. */
static const struct unit dur_units[] = {{"h", 3600 * CGN_SEC}, {"m", 60 * CGN_SEC}, {"s", CGN_SEC},
	{"ms", CGN_MSEC}};
static const struct unit size_units[] = {{"TiB", 1ULL << 40}, {"GiB", 1ULL << 30}, {"MiB", 1ULL << 20},
	{"KiB", 1ULL << 10}, {"TB", 1000000000000}, {"GB", 1000000000}, {"MB", 1000000}, {"KB", 1000},
	{"B", 1}};

static const void *field_at(const struct config_key *k, const void *base)
{
	return (const char *)base + k->offset;
}

static void *value_place(const struct config_slot *s)
{
	return (char *)s->base + s->key->offset;
}

/* The text becomes a C string and is shown on terminals, so control characters are refused. */
bool config_text_clean(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.p[i] < 0x20 || s.p[i] == 0x7f)
			return false;
	return s.n == 0 || cgn_utf8_valid(s.p, s.n);
}

static cgn_rc set_text(struct cgn_arena *a, const struct config_slot *s, struct cgn_str text)
{
	const struct config_key *k = s->key;
	double max = k->max > 0 ? k->max : CONFIG_MAX_TEXT;
	const char **at = value_place(s);
	if (text.n == 0 && k->preset == NULL) { /* An empty text lets a later source unset the value. */
		*at = NULL;
		return CGN_OK;
	}
	if ((double)text.n < k->min || (double)text.n > max || !config_text_clean(text))
		return CGN_RC_OF(CGN_INVALID);
	const char *copy = cgn_arena_strz(a, text);
	if (copy == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	*at = copy;
	return CGN_OK;
}

static cgn_rc set_bool(bool *at, struct cgn_str text)
{
	bool yes = cgn_str_is(text, "true") || cgn_str_is(text, "1");
	if (!yes && !cgn_str_is(text, "false") && !cgn_str_is(text, "0"))
		return CGN_RC_OF(CGN_INVALID);
	*at = yes;
	return CGN_OK;
}

static cgn_rc set_u32(const struct config_key *k, uint32_t *at, struct cgn_str text)
{
	uint64_t v;
	if (!cgn_str_u64(text, &v) || (double)v < k->min || (double)v > k->max)
		return CGN_RC_OF(CGN_INVALID);
	*at = (uint32_t)v;
	return CGN_OK;
}

static cgn_rc set_f64(const struct config_key *k, double *at, struct cgn_str text)
{
	char z[40], *end;
	if (text.n == 0 || memchr("+-.0123456789", text.p[0], 13) == NULL ||
		!cgn_str_copyz(z, sizeof z, text))
		return CGN_RC_OF(CGN_INVALID);
	double v = strtod(z, &end);
	if (*end != '\0' || strpbrk(z, "xX") != NULL || !isfinite(v) || v < k->min || v > k->max)
		return CGN_RC_OF(CGN_INVALID);
	*at = v;
	return CGN_OK;
}

/* Parse digits and a unit. Without a unit the number counts |plain| (0: not allowed). */
static bool with_unit(struct cgn_str text, const struct unit *units, size_t n, uint64_t plain, uint64_t *out)
{
	size_t digits = 0;
	while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9')
		digits++;
	struct cgn_str unit = {text.p + digits, text.n - digits};
	uint64_t v, factor = unit.n == 0 ? plain : 0;
	for (size_t i = 0; i < n; i++)
		if (cgn_str_is(unit, units[i].name))
			factor = units[i].factor;
	return factor != 0 && cgn_str_u64((struct cgn_str){text.p, digits}, &v) &&
		!__builtin_mul_overflow(v, factor, out);
}

bool config_duration(struct cgn_str text, cgn_nsec *out)
{
	return with_unit(text, dur_units, CGN_COUNT(dur_units), 0, out);
}

static cgn_rc set_dur(const struct config_key *k, cgn_nsec *at, struct cgn_str text)
{
	cgn_nsec v;
	if (!config_duration(text, &v))
		return CGN_RC_OF(CGN_INVALID);
	if (v < (uint64_t)k->min * CGN_MSEC || v > (uint64_t)k->max * CGN_MSEC)
		return CGN_RC_OF(CGN_INVALID);
	*at = v;
	return CGN_OK;
}

static cgn_rc set_size(const struct config_key *k, uint64_t *at, struct cgn_str text, uint64_t plain)
{
	uint64_t v;
	if (!with_unit(text, size_units, CGN_COUNT(size_units), plain, &v) || v < (uint64_t)k->min ||
		v > (uint64_t)k->max)
		return CGN_RC_OF(CGN_INVALID);
	*at = v;
	return CGN_OK;
}

CGN_RC config_list_begin(struct cgn_arena *a, const struct config_slot *s, size_t n)
{
	if ((double)n < s->key->min || (double)n > s->key->max)
		return CGN_RC_OF(CGN_INVALID);
	/* A further element, because an argv ends with NULL. */
	const char **v = cgn_arena_zero(a, (n + 1) * sizeof *v);
	if (v == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	struct config_list *at = value_place(s);
	*at = (struct config_list){v, n};
	return CGN_OK;
}

CGN_RC config_list_put(struct cgn_arena *a, const struct config_slot *s, size_t i, struct cgn_str text)
{
	const struct config_list *l = value_place(s);
	CGN_MUST(i < l->n);
	if (text.n > CONFIG_MAX_TEXT || !config_text_clean(text))
		return CGN_RC_OF(CGN_INVALID);
	const char *copy = cgn_arena_strz(a, text);
	if (copy == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	memcpy((char *)(uintptr_t)l->v + i * sizeof copy, &copy,
		sizeof copy); /* |v| is const only for readers. */
	return CGN_OK;
}

/* A list as "a,b". */
static cgn_rc set_list(struct cgn_arena *a, const struct config_slot *s, struct cgn_str text)
{
	size_t n = text.n > 0;
	for (size_t i = 0; i < text.n; i++)
		n += text.p[i] == ',';
	CGN_TRY(config_list_begin(a, s, n));
	for (size_t i = 0; i < n; i++)
		CGN_TRY(config_list_put(a, s, i, cgn_str_trim(cgn_str_split(&text, ','))));
	return CGN_OK;
}

static cgn_rc set_enum(const struct config_key *k, int *at, struct cgn_str text)
{
	int v = config_enum_value(k->enumeration, text);
	if (v == CONFIG_ENUM_START_)
		return CGN_RC_OF(CGN_INVALID);
	*at = v;
	return CGN_OK;
}

CGN_RC config_value_set(struct cgn_arena *a, const struct config_slot *s, struct cgn_str text)
{
	switch (s->key->kind) {
	case KEY_STR:
	case KEY_PATH:
		return set_text(a, s, text);
	case KEY_BOOL:
		return set_bool(value_place(s), text);
	case KEY_U32:
		return set_u32(s->key, value_place(s), text);
	case KEY_F64:
		return set_f64(s->key, value_place(s), text);
	case KEY_DUR:
		return set_dur(s->key, value_place(s), text);
	case KEY_SIZE:
		return set_size(s->key, value_place(s), text, s->gib ? 1ULL << 30 : 1);
	case KEY_LIST:
		return set_list(a, s, text);
	case KEY_ENUM:
		return set_enum(s->key, value_place(s), text);
	}
	return CGN_RC_OF(CGN_INTERNAL);
}

void config_put_quoted(struct cgn_buf *out, const char *z) /* TOML uses the escapes of JSON. */
{
	struct json_out o = json_out_to(out);
	json_put_z(&o, z);
}

static void put_list(struct cgn_buf *out, const struct config_list *l)
{
	cgn_buf_char(out, '[');
	for (size_t i = 0; i < l->n; i++) {
		cgn_buf_putz(out, i == 0 ? "" : ", ");
		config_put_quoted(out, l->v[i]);
	}
	cgn_buf_char(out, ']');
}

static void put_unit(struct cgn_buf *out, uint64_t v, const struct unit *units, size_t n, const char *zero)
{
	size_t i = 0;
	while (i < n && v % units[i].factor != 0)
		i++;
	CGN_MUST(i < n);
	if (v == 0)
		cgn_buf_fmt(out, "\"0%s\"", zero);
	else
		cgn_buf_fmt(out, "\"%llu%s\"", (unsigned long long)(v / units[i].factor), units[i].name);
}

bool config_value_text(const struct config_key *k, const void *base, struct cgn_buf *out)
{
	const void *at = field_at(k, base);
	switch (k->kind) {
	case KEY_STR:
	case KEY_PATH:
		if (*(const char *const *)at == NULL)
			return false;
		config_put_quoted(out, *(const char *const *)at);
		return true;
	case KEY_BOOL:
		cgn_buf_putz(out, *(const bool *)at ? "true" : "false");
		return true;
	case KEY_U32:
		cgn_buf_u64(out, *(const uint32_t *)at);
		return true;
	case KEY_F64:
		cgn_buf_fmt(out, "%.15g", *(const double *)at);
		return true;
	case KEY_DUR:
		put_unit(out, *(const cgn_nsec *)at, dur_units, CGN_COUNT(dur_units), "s");
		return true;
	case KEY_SIZE:
		put_unit(out, *(const uint64_t *)at, size_units, CGN_COUNT(size_units), "B");
		return true;
	case KEY_LIST:
		put_list(out, at);
		return true;
	case KEY_ENUM:
		config_put_quoted(out, config_enum_text(*(const int *)at));
		return true;
	}
	return false;
}

bool config_value_same(const struct config_key *k, const void *one, const void *other)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf a = {0}, b = {0};
	bool set_a = config_value_text(k, one, &a), set_b = config_value_text(k, other, &b);
	return set_a == set_b && cgn_str_eq(cgn_buf_view(&a), cgn_buf_view(&b)) && !a.bad && !b.bad;
}

bool config_replicas_read(struct cgn_str text, struct config_replicas *out)
{
	uint64_t least, most;
	struct cgn_str rest = text, first = cgn_str_split(&rest, '-');
	if (rest.p == NULL || !cgn_str_u64(first, &least) || !cgn_str_u64(rest, &most) || most == 0 ||
		most < least || most > UINT32_MAX)
		return false;
	*out = (struct config_replicas){(uint32_t)least, (uint32_t)most};
	return true;
}
