/* SPDX-License-Identifier: Apache-2.0 */
/* changes: which programs read the settings that differ. Settings that are not known to belong to one program are all
 * programs'. */
#include "base/toml/toml.h"
#include "policy/fleet/rack/rack.h"

static const struct {
	const char *section;
	unsigned roles;
} readers[] = {
	{"agent", RACK_BIT(RACK_AGENT)},
	{"batch", RACK_BIT(RACK_ROUTER)},
	{"bmcs", RACK_BIT(RACK_METRICS)},
	{"engine", RACK_BIT(RACK_AGENT)},
	{"engines", RACK_BIT(RACK_AGENT)},
	{"hooks", RACK_BIT(RACK_ROUTER)},
	{"kv", RACK_BIT(RACK_STORE)},
	{"metrics", RACK_BIT(RACK_METRICS)},
	{"router", RACK_BIT(RACK_ROUTER)},
	{"scrape_targets", RACK_BIT(RACK_METRICS)},
	{"tenants", RACK_BIT(RACK_ROUTER)},
};

/* The settings of each role, one a line. */
struct spelling {
	struct cgn_buf of[RACK_ROLES];
};

unsigned rack_readers(struct cgn_str section)
{
	for (size_t i = 0; i < CGN_COUNT(readers); i++)
		if (cgn_str_is(section, readers[i].section))
			return readers[i].roles;
	return RACK_ALL & ~RACK_BIT(RACK_ETCD);
}

static void node_spell(const struct toml_node *n, struct cgn_buf *out)
{
	for (size_t i = 0; i < n->depth; i++) {
		if (n->path[i].key.p != NULL)
			cgn_buf_fmt(out, "%zu:", n->path[i].key.n);
		else
			cgn_buf_fmt(out, "[%zu]", n->path[i].index);
		cgn_buf_str(out, n->path[i].key);
	}
	cgn_buf_fmt(out, "=%d,%zu:", (int)n->type, n->text.n);
	cgn_buf_str(out, n->text);
	cgn_buf_char(out, '\n');
}

static cgn_rc node_take(void *user, const struct toml_node *n, struct cgn_err *err)
{
	struct spelling *s = user;
	(void)err;
	if (n->type == TOML_TABLE && (n->n > 0 || n->depth == 1))
		return CGN_OK; /* The members follow. */
	unsigned roles = rack_readers(n->path[0].key);
	if (n->depth == 2 && cgn_str_is(n->path[0].key, "kv") &&
		(cgn_str_is(n->path[1].key, "rack") || cgn_str_is(n->path[1].key, "region")))
		roles |= RACK_BIT(RACK_AGENT);
	for (unsigned i = 0; i < RACK_ROLES; i++)
		if ((roles & RACK_BIT(i)) != 0)
			node_spell(n, &s->of[i]);
	return CGN_OK;
}

unsigned rack_changed(struct cgn_str old, struct cgn_str now)
{
	struct spelling was = {0}, is = {0};
	unsigned roles = 0;
	struct cgn_err err;
	bool read = cgn_ok(toml_parse("old", old, node_take, &was, &err)) &&
		cgn_ok(toml_parse("new", now, node_take, &is, &err));
	for (unsigned i = 0; i < RACK_ROLES; i++) {
		if (!cgn_str_eq(cgn_buf_view(&was.of[i]), cgn_buf_view(&is.of[i])) || was.of[i].bad)
			roles |= RACK_BIT(i);
		cgn_buf_fini(&was.of[i]);
		cgn_buf_fini(&is.of[i]);
	}
	return read ? roles : RACK_ALL & ~RACK_BIT(RACK_ETCD);
}

static struct cgn_str next_read(struct cgn_str *text)
{
	struct cgn_str line = {NULL, 0};
	while (text->n > 0) {
		line = cgn_str_split(text, '\n');
		if (!cgn_str_starts(line, "ETCD_INITIAL_"))
			return line;
	}
	return (struct cgn_str){NULL, 0};
}

bool rack_etcd_changed(struct cgn_str old, struct cgn_str now)
{
	struct cgn_str was = next_read(&old), is = next_read(&now);
	while (was.p != NULL && is.p != NULL && cgn_str_eq(was, is)) {
		was = next_read(&old);
		is = next_read(&now);
	}
	return was.p != NULL || is.p != NULL;
}
