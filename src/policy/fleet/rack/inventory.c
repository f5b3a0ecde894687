/* SPDX-License-Identifier: Apache-2.0 */
/* inventory: a TOML file, node by node, into hosts. */
#include "policy/fleet/rack/rack.h"

#include <stdlib.h>
#include <string.h>

#include "base/toml/toml.h"

#define ARENA_BYTES ((size_t)16 << 20)
#define MAX_VALUE   ((size_t)64 << 10)

static const struct {
	const char *name, *unit;
} roles[RACK_ROLES] = {
	[RACK_ETCD] = {"etcd", "etcd"},
	[RACK_STORE] = {"store", "cgn-kvcached"},
	[RACK_ROUTER] = {"router", "cgn-router"},
	[RACK_AGENT] = {"agent", "cgn-agent"},
	[RACK_METRICS] = {"metrics", "cgn-metrics"},
};

/* A list of an inventory's settings, written as one line of TOML while its elements are visited. */
struct value {
	struct cgn_buf text;
	struct {
		size_t depth, n;
		char end;
	} open[TOML_MAX_DEPTH];
	size_t n_open;
	struct rack_leaf leaf;
	struct rack_leaves *to;
};
struct reader {
	struct rack *r;
	struct value value;
};

const char *rack_role_name(enum rack_role role)
{
	return roles[role].name;
}

const char *rack_unit(enum rack_role role)
{
	return roles[role].unit;
}

/* ---- errors ---- */

static cgn_rc fail_at(const struct rack *r, struct toml_place at, const char *what, struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID, "%.150s:%u:%u: %s", r->file, at.line, at.column, what);
}

static cgn_rc fail_line(const struct rack *r, const struct rack_host *h, const char *what,
	struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID, "%.150s:%u: host %s: %s", r->file, h->line, h->name, what);
}

/* Put the place of |n| before an error that has none. */
static cgn_rc place_error(const struct rack *r, const struct toml_node *n, cgn_rc rc, struct cgn_err *err)
{
	char place[200];
	(void)snprintf(place, sizeof place, "%.150s:%u:%u", r->file, n->at.line, n->at.column);
	return cgn_err_of(rc, place, err);
}

static CGN_RC text_keep(struct rack *r, struct cgn_str s, const char **out, struct cgn_err *err)
{
	*out = cgn_arena_strz(&r->arena, s);
	return *out != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "the inventory is too large");
}

/* ---- words: texts that become arguments of ssh, parts of files' names and of certificates ---- */

static bool word_ok(struct cgn_str s, const char *more, size_t max)
{
	if (s.n == 0 || s.n > max || s.p[0] == '-' || s.p[0] == '.')
		return false;
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i], low = (char)(c | 0x20);
		if (!(low >= 'a' && low <= 'z') && !(c >= '0' && c <= '9') &&
			(c == '\0' || strchr(more, c) == NULL))
			return false;
	}
	return true;
}

/* ---- settings ---- */

static void value_key(struct cgn_buf *out, struct cgn_str key, bool *ok)
{
	if (word_ok(key, "_-", SIZE_MAX))
		cgn_buf_str(out, key);
	else
		*ok = rack_quote(out, key) && *ok;
}

static bool value_scalar(struct cgn_buf *out, const struct toml_node *n)
{
	if (n->type == TOML_STRING)
		return rack_quote(out, n->text);
	cgn_buf_str(out, n->text);
	return true;
}

/* Close the lists and tables that do not contain a node of that depth. */
static void value_close(struct value *v, size_t depth)
{
	while (v->n_open > 0 && v->open[v->n_open - 1].depth >= depth)
		cgn_buf_char(&v->text, v->open[--v->n_open].end);
}

static void value_open(struct value *v, const struct toml_node *n)
{
	bool list = n->type == TOML_ARRAY;
	CGN_MUST(v->n_open < TOML_MAX_DEPTH);
	cgn_buf_char(&v->text, list ? '[' : '{');
	v->open[v->n_open].depth = n->depth;
	v->open[v->n_open].n = 0;
	v->open[v->n_open++].end = list ? ']' : '}';
}

static cgn_rc value_begin(struct reader *rd, const struct toml_node *n, struct cgn_err *err)
{
	struct value *v = &rd->value;
	bool ok = true;
	if (v->n_open > 0) {
		if (v->open[v->n_open - 1].n++ > 0)
			cgn_buf_putz(&v->text, ", ");
		if (v->open[v->n_open - 1].end == '}') {
			value_key(&v->text, n->path[n->depth - 1].key, &ok);
			cgn_buf_putz(&v->text, " = ");
		}
	}
	if (n->type == TOML_ARRAY || n->type == TOML_TABLE)
		value_open(v, n);
	else
		ok = value_scalar(&v->text, n) && ok;
	return ok ? CGN_OK : fail_at(rd->r, n->at, "a text has control characters", err);
}

/* The value is complete: keep it. */
static cgn_rc value_settle(struct reader *rd, struct cgn_err *err)
{
	struct value *v = &rd->value;
	if (v->to == NULL)
		return CGN_OK;
	value_close(v, 0);
	if (v->text.bad)
		return CGN_FAIL(err, INVALID, "%.150s:%u: the value is longer than %zu bytes", rd->r->file,
			v->leaf.line, MAX_VALUE);
	CGN_TRY(text_keep(rd->r, cgn_buf_view(&v->text), &v->leaf.value, err));
	struct rack_leaves *to = v->to;
	v->to = NULL;
	v->text.n = 0;
	return cgn_err_of(rack_leaf_put(rd->r, to, &v->leaf, err), rd->r->file, err);
}

static bool is_engine(const struct rack_leaf *l)
{
	return strcmp(l->section, "engine") == 0 || strncmp(l->section, "engine.", 7) == 0;
}

static bool is_engines(const struct rack_leaf *l)
{
	return l->section[0] == '\0' && strcmp(l->key, "engines") == 0;
}

/* A host's [[engines]] replace the [engine] of [defaults], and the other way round. */
static void engines_replace(struct rack_leaves *in, const struct rack_leaf *own)
{
	size_t kept = 0;
	if (own->inherited || (!is_engine(own) && !is_engines(own)))
		return;
	for (size_t i = 0; i < in->n; i++) {
		const struct rack_leaf *l = &in->list[i];
		if (!l->inherited || !(is_engines(own) ? is_engine(l) : is_engines(l)))
			in->list[kept++] = *l;
	}
	in->n = kept;
}

static CGN_RC leaf_name(struct reader *rd, const struct toml_node *n, size_t from, struct rack_leaf *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf section = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	bool ok = true;
	for (size_t i = from; i + 1 < n->depth; i++) {
		if (i > from)
			cgn_buf_char(&section, '.');
		value_key(&section, n->path[i].key, &ok);
	}
	value_key(&key, n->path[n->depth - 1].key, &ok);
	if (!ok)
		return fail_at(rd->r, n->key_at, "a key has control characters", err);
	CGN_TRY(text_keep(rd->r, cgn_buf_view(&section), &out->section, err));
	return text_keep(rd->r, cgn_buf_view(&key), &out->key, err);
}

static bool leaf_is_ours(const struct rack_leaf *l)
{
	return (strcmp(l->section, "cluster") == 0 && strcmp(l->key, "name") == 0) ||
		(strcmp(l->section, "agent") == 0 && strcmp(l->key, "node_id") == 0);
}

/* Take a setting whose path in cognitora.toml begins at step |from|. */
static cgn_rc setting_take(struct reader *rd, struct rack_host *h, const struct toml_node *n, size_t from,
	struct cgn_err *err)
{
	struct value *v = &rd->value;
	if (v->to != NULL) { /* The node is inside of a list. */
		value_close(v, n->depth);
		return value_begin(rd, n, err);
	}
	if (n->type == TOML_TABLE)
		return CGN_OK;
	v->leaf = (struct rack_leaf){.line = n->at.line, .inherited = h == &rd->r->defaults};
	CGN_TRY(leaf_name(rd, n, from, &v->leaf, err));
	if (leaf_is_ours(&v->leaf))
		return fail_at(rd->r, n->key_at,
			"the inventory says this already: cluster.name, and the host's name", err);
	engines_replace(&h->settings, &v->leaf);
	v->to = &h->settings;
	return value_begin(rd, n, err);
}

/* ---- hosts ---- */

static cgn_rc host_role(struct rack *r, struct rack_host *h, const struct toml_node *n, bool own,
	struct cgn_err *err)
{
	if (own && n->type == TOML_ARRAY) {
		h->roles = 0;
		return CGN_OK;
	}
	for (unsigned i = 0; !own && n->type == TOML_STRING && i < RACK_ROLES; i++)
		if (cgn_str_is(n->text, roles[i].name)) {
			h->roles |= RACK_BIT(i);
			return CGN_OK;
		}
	return fail_at(r, n->at,
		"roles are \"router\", \"agent\", \"store\", \"metrics\" and \"etcd\", in a list", err);
}

static cgn_rc host_word(struct rack *r, const struct toml_node *n, const char *more, const char **out,
	struct cgn_err *err)
{
	if (n->type != TOML_STRING || !word_ok(n->text, more, 253))
		return fail_at(r, n->at,
			"must be a text of letters, digits, '.', '_' and '-' that begins with a letter or digit (an address may have ':')",
			err);
	return text_keep(r, n->text, out, err);
}

static cgn_rc host_address(struct rack *r, struct rack_host *h, const struct toml_node *n,
	struct cgn_err *err)
{
	char text[RACK_ADDRESS_MAX];
	CGN_TRY(host_word(r, n, ".:-", &h->address, err));
	if (!rack_is_ip(h->address))
		return CGN_OK;
	if (!rack_ip_text(h->address, text))
		return fail_at(r, n->at,
			"address is not an address of IPv4 or IPv6: write it without brackets and port, such as \"10.0.0.11\" or \"fd00::11\"",
			err);
	return text_keep(r, cgn_str_of(text), &h->address, err);
}

static cgn_rc host_port(struct rack *r, struct rack_host *h, const struct toml_node *n, struct cgn_err *err)
{
	uint64_t port = 0;
	if (n->type != TOML_INTEGER || !cgn_str_u64(n->text, &port) || port < 1 || port > 65535)
		return fail_at(r, n->at, "port must be a whole number, 1 to 65535", err);
	h->port = (uint32_t)port;
	return CGN_OK;
}

static cgn_rc host_sudo(struct rack *r, struct rack_host *h, const struct toml_node *n, struct cgn_err *err)
{
	if (n->type != TOML_BOOL)
		return fail_at(r, n->at, "sudo must be true or false", err);
	h->sudo = cgn_str_is(n->text, "true");
	return CGN_OK;
}

static cgn_rc host_file(struct rack *r, const struct toml_node *n, const char **out, struct cgn_err *err)
{
	if (n->type != TOML_STRING || n->text.n == 0 || memchr(n->text.p, '\0', n->text.n) != NULL)
		return fail_at(r, n->at, "must be the name of a file", err);
	return text_keep(r, n->text, out, err);
}

/* Take a member of a host or of [defaults]; |at|: its step. */
static cgn_rc host_member(struct reader *rd, struct rack_host *h, const struct toml_node *n, size_t at,
	struct cgn_err *err)
{
	struct rack *r = rd->r;
	struct cgn_str key = n->path[at].key;
	bool own = n->depth == at + 1;
	if (cgn_str_is(key, "settings"))
		return own ? (n->type == TOML_TABLE ? CGN_OK
						    : fail_at(r, n->at, "settings must be a table", err))
			   : setting_take(rd, h, n, at + 1, err);
	if (cgn_str_is(key, "engine") || cgn_str_is(key, "engines"))
		return setting_take(rd, h, n, at, err);
	if (cgn_str_is(key, "roles") && n->depth <= at + 2)
		return host_role(r, h, n, own, err);
	if (own && cgn_str_is(key, "user"))
		return host_word(r, n, "._-", &h->user, err);
	if (own && cgn_str_is(key, "port"))
		return host_port(r, h, n, err);
	if (own && cgn_str_is(key, "sudo"))
		return host_sudo(r, h, n, err);
	if (own && cgn_str_is(key, "ssh_config"))
		return host_file(r, n, &h->ssh_config, err);
	if (own && cgn_str_is(key, "address") && h != &r->defaults)
		return host_address(r, h, n, err);
	if (own && cgn_str_is(key, "ssh") && h != &r->defaults)
		return host_word(r, n, "._:-", &h->ssh, err);
	return fail_at(r, n->key_at,
		h == &r->defaults
			? "unknown key: [defaults] has user, port, sudo, ssh_config, roles, engine, engines and settings"
			: "unknown key: a host has address, ssh, user, port, sudo, ssh_config, roles, engine, engines and settings",
		err);
}

static cgn_rc host_begin(struct reader *rd, const struct toml_node *n, struct cgn_err *err)
{
	struct rack *r = rd->r;
	struct rack_host *h = &r->hosts[r->n];
	if (n->type != TOML_TABLE || !word_ok(n->path[1].key, "._-", RACK_NAME_MAX))
		return fail_at(r, n->key_at,
			"a host is a table, [hosts.NAME]; a name has letters, digits, '.', '_' and '-', at most 63",
			err);
	if (r->n == RACK_MAX_HOSTS)
		return CGN_FAIL(err, INVALID, "%.150s:%u: more than %d hosts", r->file, n->key_at.line,
			RACK_MAX_HOSTS);
	*h = r->defaults;
	h->settings = (struct rack_leaves){0};
	h->line = n->key_at.line;
	r->n++;
	for (size_t i = 0; i < r->defaults.settings.n; i++)
		CGN_TRY(rack_leaf_put(r, &h->settings, &r->defaults.settings.list[i], err));
	return text_keep(r, n->path[1].key, &h->name, err);
}

static cgn_rc cluster_take(struct rack *r, const struct toml_node *n, struct cgn_err *err)
{
	if (n->depth == 1 && n->type == TOML_TABLE)
		return CGN_OK;
	if (n->depth == 2 && cgn_str_is(n->path[1].key, "name"))
		return host_word(r, n, "._-", &r->cluster, err);
	return fail_at(r, n->key_at, "unknown key: [cluster] has name", err);
}

static cgn_rc node_take(struct reader *rd, const struct toml_node *n, struct cgn_err *err)
{
	struct rack *r = rd->r;
	struct cgn_str first = n->path[0].key;
	if (cgn_str_is(first, "cluster"))
		return cluster_take(r, n, err);
	if ((cgn_str_is(first, "defaults") || cgn_str_is(first, "hosts")) && n->depth == 1 &&
		n->type == TOML_TABLE)
		return CGN_OK;
	if (cgn_str_is(first, "defaults") && n->depth > 1)
		return host_member(rd, &r->defaults, n, 1, err);
	if (cgn_str_is(first, "hosts") && n->depth == 2)
		return host_begin(rd, n, err);
	if (cgn_str_is(first, "hosts") && n->depth > 2)
		return host_member(rd, &r->hosts[r->n - 1], n, 2, err);
	return fail_at(r, n->key_at, "unknown key: there are [cluster], [defaults] and [hosts.NAME]", err);
}

static cgn_rc on_node(void *user, const struct toml_node *n, struct cgn_err *err)
{
	struct reader *rd = user;
	const struct value *v = &rd->value;
	if (v->to != NULL && (v->n_open == 0 || n->depth <= v->open[0].depth))
		CGN_TRY(value_settle(rd, err));
	cgn_rc rc = node_take(rd, n, err);
	return rc.code == CGN_TOO_LARGE ? place_error(rd->r, n, rc, err) : rc;
}

/* ---- the whole ---- */

const struct rack_host *rack_find(const struct rack *r, struct cgn_str name)
{
	for (size_t i = 0; i < r->n; i++)
		if (cgn_str_is(name, r->hosts[i].name))
			return &r->hosts[i];
	return NULL;
}

const struct rack_host *rack_nth(const struct rack *r, enum rack_role role, size_t i)
{
	for (size_t k = 0; k < r->n; k++)
		if (rack_has(&r->hosts[k], role) && i-- == 0)
			return &r->hosts[k];
	return NULL;
}

static bool host_has_engine(const struct rack_host *h)
{
	for (size_t i = 0; i < h->settings.n; i++)
		if (is_engine(&h->settings.list[i]) || is_engines(&h->settings.list[i]))
			return true;
	return false;
}

static CGN_RC host_check(const struct rack *r, const struct rack_host *h, struct cgn_err *err)
{
	if (h->address == NULL)
		return fail_line(r, h, "address is missing: where the other hosts reach it", err);
	if (h->roles == 0)
		return fail_line(r, h, "roles is missing, such as roles = [\"agent\", \"store\"]", err);
	if (rack_has(h, RACK_AGENT) && !host_has_engine(h))
		return fail_line(r, h,
			"the role agent needs an engine: [defaults.engine], or an [engine] or [[engines]] of the host, with kind and url",
			err);
	for (const struct rack_host *o = r->hosts; o < h; o++)
		if (strcmp(o->address, h->address) == 0)
			return CGN_FAIL(err, INVALID, "%.150s:%u: host %s has the address of host %s: %s",
				r->file, h->line, h->name, o->name, h->address);
	return CGN_OK;
}

static CGN_RC cluster_check(const struct rack *r, struct cgn_err *err)
{
	size_t n[RACK_ROLES] = {0};
	for (size_t i = 0; i < r->n; i++) {
		CGN_TRY(host_check(r, &r->hosts[i], err));
		for (unsigned role = 0; role < RACK_ROLES; role++)
			n[role] += rack_has(&r->hosts[i], (enum rack_role)role);
	}
	if (r->n == 0)
		return CGN_FAIL(err, INVALID, "%.150s: there is no host; write [hosts.NAME]", r->file);
	if (n[RACK_ROUTER] == 0)
		return CGN_FAIL(err, INVALID, "%.150s: no host has the role router", r->file);
	if (n[RACK_ROUTER] > 1 && n[RACK_ETCD] == 0)
		return CGN_FAIL(err, INVALID,
			"%.150s: %zu routers share their nodes by etcd: give three hosts the role etcd",
			r->file, n[RACK_ROUTER]);
	if (n[RACK_ETCD] > 0 && n[RACK_ETCD] % 2 == 0)
		return CGN_FAIL(err, INVALID,
			"%.150s: %zu hosts have the role etcd: it must be an odd number, best 3", r->file,
			n[RACK_ETCD]);
	return n[RACK_ETCD] <= 9
		? CGN_OK
		: CGN_FAIL(err, INVALID, "%.150s: more than 9 hosts have the role etcd", r->file);
}

static CGN_RC rack_fill(struct reader *rd, struct cgn_str text, struct cgn_err *err)
{
	struct rack *r = rd->r;
	CGN_TRY(text_keep(r, cgn_str_of(r->file), &r->file, err));
	CGN_TRY(toml_parse(r->file, text, on_node, rd, err));
	CGN_TRY(value_settle(rd, err));
	return cluster_check(r, err);
}

CGN_RC rack_read(const char *file, struct cgn_str text, struct rack **out, struct cgn_err *err)
{
	struct rack *r = CGN_NEW(struct rack);
	struct reader rd = {.r = r, .value.text.limit = MAX_VALUE};
	cgn_arena_init(&r->arena, ARENA_BYTES);
	r->file = file;
	r->cluster = "cognitora";
	r->defaults.name = "defaults";
	cgn_rc rc = rack_fill(&rd, text, err);
	cgn_buf_fini(&rd.value.text);
	if (cgn_ok(rc))
		*out = r;
	else
		rack_free(&r);
	return rc;
}

void rack_free(struct rack **take)
{
	struct rack *r = CGN_TAKE(take);
	if (r == NULL)
		return;
	cgn_arena_fini(&r->arena);
	free(r);
}
