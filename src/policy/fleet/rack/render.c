/* SPDX-License-Identifier: Apache-2.0 */
/* render: the settings of one host: those that follow from the inventory's roles and addresses, then those that the
 * inventory names. */
#include <stdio.h>
#include <string.h>

#include "policy/config/config.h"
#include "policy/fleet/rack/rack.h"
#include "policy/fleet/settings/settings.h"

#define MAX_LINES 4096

/* ---- addresses ---- */

/* Append HOST:PORT; an address of IPv6 gets brackets. */
static void put_address(const char *host, const char *port, struct cgn_buf *out)
{
	cgn_buf_fmt(out, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

/* Return where programs of the host listen: the host's address, or every address where only its name is
 * known. */
static const char *listen_host(const struct rack_host *h)
{
	return rack_is_ip(h->address) ? h->address : "0.0.0.0";
}

void rack_endpoint(const struct rack_host *h, const char *section, const char *key, const char *port,
	struct cgn_buf *out)
{
	char own[6] = "";
	const char *value = rack_leaf_find(&h->settings, section, key);
	const char *colon = value != NULL ? strrchr(value, ':') : NULL;
	if (colon != NULL) /* "HOST:PORT", in quotes. */
		(void)cgn_str_copyz(own, sizeof own,
			(struct cgn_str){colon + 1, strspn(colon + 1, "0123456789")});
	put_address(h->address, own[0] != '\0' ? own : port, out);
}

/* ---- computed settings ---- */

struct draft {
	struct rack *r;
	struct rack_leaves leaves;
	cgn_rc rc;
	struct cgn_err *err;
};

/* Add a setting; |value| is TOML. The first failure is kept. */
static void draft_raw(struct draft *d, const char *section, const char *key, const char *value)
{
	if (!cgn_ok(d->rc))
		return;
	const char *kept = cgn_arena_strz(&d->r->arena, cgn_str_of(value));
	const struct rack_leaf leaf = {.section = section, .key = key, .value = kept};
	d->rc = kept != NULL ? rack_leaf_put(d->r, &d->leaves, &leaf, d->err)
			     : CGN_FAIL(d->err, NO_MEMORY, "the settings are too large");
}

static void draft_text(struct draft *d, const char *section, const char *key, const char *text)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf value = {0};
	(void)rack_quote(&value, cgn_str_of(text));
	draft_raw(d, section, key, cgn_buf_z(&value));
}

static void draft_address(struct draft *d, const char *section, const char *key, const char *host,
	const char *port)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	put_address(host, port, &text);
	draft_text(d, section, key, cgn_buf_z(&text));
}

/* Add |section|.advertise: where others reach what listens at |key|. */
static void draft_endpoint(struct draft *d, const struct rack_host *h, const char *section, const char *key,
	const char *port)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	rack_endpoint(h, section, key, port, &text);
	draft_text(d, section, "advertise", cgn_buf_z(&text));
}

/* Add the list of an address of each host with the role. */
static void draft_all(struct draft *d, const char *section, const char *key, enum rack_role role,
	void (*address)(const struct rack_host *h, struct cgn_buf *out))
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf list = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf one = {0};
	const struct rack_host *h;
	for (size_t i = 0; (h = rack_nth(d->r, role, i)) != NULL; i++) {
		cgn_buf_putz(&list, i == 0 ? "[" : ", ");
		one.n = 0;
		address(h, &one);
		(void)rack_quote(&list, cgn_buf_view(&one));
	}
	cgn_buf_char(&list, ']');
	draft_raw(d, section, key, cgn_buf_z(&list));
}

static void etcd_client(const struct rack_host *h, struct cgn_buf *out)
{
	cgn_buf_putz(out, "https://");
	put_address(h->address, "2379", out);
}

static void router_grpc(const struct rack_host *h, struct cgn_buf *out)
{
	rack_endpoint(h, "router", "listen_grpc", "9090", out);
}

static void cluster_draft(struct draft *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf router = {0};
	bool etcd = rack_nth(d->r, RACK_ETCD, 0) != NULL;
	draft_text(d, "cluster", "name", d->r->cluster);
	draft_text(d, "cluster", "state_backend", etcd ? "etcd" : "embedded");
	router_grpc(rack_nth(d->r, RACK_ROUTER, 0), &router);
	draft_text(d, "cluster", "router", cgn_buf_z(&router));
	if (etcd) {
		draft_all(d, "cluster", "etcd_endpoints", RACK_ETCD, etcd_client);
		draft_text(d, "cluster", "etcd_ca_file", "credential:ca.pem");
		draft_text(d, "cluster", "etcd_cert_file", "credential:program.pem");
		draft_text(d, "cluster", "etcd_key_file", "credential:program.key");
	}
	draft_raw(d, "security", "require_mtls", "true");
	draft_text(d, "security", "ca_file", "credential:ca.pem");
	draft_text(d, "security", "cert_file", "credential:program.pem");
	draft_text(d, "security", "key_file", "credential:program.key");
}

static void roles_draft(struct draft *d, const struct rack_host *h)
{
	const char *at = listen_host(h);
	if (rack_has(h, RACK_ROUTER)) {
		draft_text(d, "router", "listen", "127.0.0.1:8080");
		draft_address(d, "router", "listen_grpc", at, "9090");
	}
	if (rack_has(h, RACK_AGENT)) {
		draft_address(d, "agent", "listen", at, "7080");
		draft_endpoint(d, h, "agent", "listen", "7080");
		draft_text(d, "agent", "node_id", h->name);
	}
	if (rack_has(h, RACK_STORE)) {
		draft_address(d, "kv", "listen", at, "7090");
		draft_address(d, "kv", "quic_listen", at, "7091");
		draft_endpoint(d, h, "kv", "quic_listen", "7091");
	}
	if (rack_has(h, RACK_METRICS)) {
		draft_address(d, "metrics", "listen", at, "9092");
		draft_all(d, "metrics", "scrape_routers", RACK_ROUTER, router_grpc);
	}
}

/* ---- the text ---- */

/* The line of the inventory that each line of the text comes from. */
struct origins {
	unsigned line[MAX_LINES];
	size_t n;
};

static void line_note(struct origins *o, unsigned line)
{
	if (o->n < MAX_LINES)
		o->line[o->n++] = line;
}

static bool section_is_new(const struct rack_leaves *in, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (strcmp(in->list[k].section, in->list[i].section) == 0)
			return false;
	return true;
}

static void section_write(const struct rack_leaves *in, const char *section, struct cgn_buf *out,
	struct origins *o)
{
	for (size_t i = 0; i < in->n; i++)
		if (strcmp(in->list[i].section, section) == 0) {
			cgn_buf_fmt(out, "%s = %s\n", in->list[i].key, in->list[i].value);
			line_note(o, in->list[i].line);
		}
}

static void text_write(const struct rack_leaves *in, struct cgn_buf *out, struct origins *o)
{
	cgn_buf_putz(out,
		"# Written by cgn-ctl install baremetal from an inventory: change that, and install again.\n"
		"# Each unit gets the files of its own certificate by LoadCredential=.\n");
	line_note(o, 0);
	line_note(o, 0);
	section_write(in, "", out, o);
	for (size_t i = 0; i < in->n; i++) {
		if (in->list[i].section[0] == '\0' || !section_is_new(in, i))
			continue;
		cgn_buf_fmt(out, "\n[%s]\n", in->list[i].section);
		line_note(o, 0);
		line_note(o, in->list[i].line);
		section_write(in, in->list[i].section, out, o);
	}
}

/* Say the place in the inventory instead of the place in the text. */
static cgn_rc error_place(const struct rack *r, const struct rack_host *h, const struct origins *o, cgn_rc rc,
	struct cgn_err *err)
{
	char what[sizeof err->msg];
	unsigned line = 0, column = 0;
	int at = 0;
	if (err == NULL)
		return rc;
	if (sscanf(err->msg, "cognitora.toml:%u:%u: %n", &line, &column, &at) < 2 || at == 0)
		line = 0;
	(void)snprintf(what, sizeof what, "%s", err->msg + at);
	unsigned from = line > 0 && line <= o->n ? o->line[line - 1] : 0;
	return CGN_FAIL_AS(err, rc.code, "%.150s:%u: host %s: %s", r->file, from > 0 ? from : h->line,
		h->name, what);
}

static CGN_RC text_check(struct cgn_str text, struct cgn_err *err)
{
	static const char *const env[] = {"CREDENTIALS_DIRECTORY=/run/credentials", NULL};
	CGN_ON_EXIT(config_free) struct config *cfg = NULL;
	return settings_load("cognitora.toml", text, env, NULL, 0, &cfg, err);
}

/* Settings of [defaults] are left out where no program of the host reads them. */
static bool leaf_is_for(const struct rack_host *h, const struct rack_leaf *l)
{
	struct cgn_str section = cgn_str_of(l->section[0] != '\0' ? l->section : l->key);
	return !l->inherited || (rack_readers(cgn_str_split(&section, '.')) & h->roles) != 0;
}

CGN_RC rack_settings(struct rack *r, const struct rack_host *h, struct cgn_buf *out, struct cgn_err *err)
{
	struct origins o = {.n = 0};
	struct draft d = {.r = r, .rc = CGN_OK, .err = err};
	cluster_draft(&d);
	roles_draft(&d, h);
	for (size_t i = 0; cgn_ok(d.rc) && i < h->settings.n; i++)
		if (leaf_is_for(h, &h->settings.list[i]))
			d.rc = rack_leaf_put(r, &d.leaves, &h->settings.list[i], err);
	CGN_TRY(cgn_err_of(d.rc, h->name, err));
	size_t before = out->n;
	text_write(&d.leaves, out, &o);
	if (out->bad)
		return CGN_FAIL(err, TOO_LARGE, "host %s: the settings are too large", h->name);
	cgn_rc rc = text_check((struct cgn_str){out->p + before, out->n - before}, err);
	return cgn_ok(rc) ? rc : error_place(r, h, &o, rc, err);
}

/* ---- etcd ---- */

static void etcd_url(struct cgn_buf *out, const char *name, const char *host, const char *port)
{
	cgn_buf_fmt(out, "%s=https://", name);
	put_address(host, port, out);
	cgn_buf_char(out, '\n');
}

void rack_peer_url(const struct rack_host *h, struct cgn_buf *out)
{
	cgn_buf_putz(out, "https://");
	put_address(h->address, "2380", out);
}

void rack_etcd_env(const struct rack *r, const struct rack_host *h, struct cgn_buf *out)
{
	const struct rack_host *m;
	cgn_buf_fmt(out,
		"# Written by cgn-ctl install baremetal.\nETCD_NAME=%s\nETCD_DATA_DIR=/var/lib/etcd/%s\n",
		h->name, r->cluster);
	etcd_url(out, "ETCD_LISTEN_CLIENT_URLS", listen_host(h), "2379");
	etcd_url(out, "ETCD_ADVERTISE_CLIENT_URLS", h->address, "2379");
	etcd_url(out, "ETCD_LISTEN_PEER_URLS", listen_host(h), "2380");
	etcd_url(out, "ETCD_INITIAL_ADVERTISE_PEER_URLS", h->address, "2380");
	cgn_buf_putz(out, "ETCD_INITIAL_CLUSTER=");
	for (size_t i = 0; (m = rack_nth(r, RACK_ETCD, i)) != NULL; i++) {
		cgn_buf_fmt(out, "%s%s=", i > 0 ? "," : "", m->name);
		rack_peer_url(m, out);
	}
	cgn_buf_fmt(out,
		"\nETCD_INITIAL_CLUSTER_TOKEN=%s\nETCD_INITIAL_CLUSTER_STATE=new\n"
		"ETCD_CLIENT_CERT_AUTH=true\nETCD_PEER_CLIENT_CERT_AUTH=true\n"
		"ETCD_AUTO_COMPACTION_MODE=periodic\nETCD_AUTO_COMPACTION_RETENTION=1h\n",
		r->cluster);
}

/* ---- ports ---- */

static void port_put(const struct rack_host *h, const char *section, const char *key, const char *port,
	const char *protocol, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf endpoint = {0};
	rack_endpoint(h, section, key, port, &endpoint);
	cgn_buf_fmt(out, "%s%s %s", out->n > 0 ? ", " : "", protocol, strrchr(cgn_buf_z(&endpoint), ':') + 1);
}

void rack_ports(const struct rack_host *h, struct cgn_buf *out)
{
	static const struct {
		enum rack_role role;
		const char *section, *key, *port, *protocol;
	} ports[] = {
		{RACK_ETCD, "", "", "2379", "tcp"},
		{RACK_ETCD, "", "", "2380", "tcp"},
		{RACK_ROUTER, "router", "listen", "8080", "tcp"},
		{RACK_ROUTER, "router", "listen_grpc", "9090", "tcp"},
		{RACK_AGENT, "agent", "listen", "7080", "tcp"},
		{RACK_STORE, "kv", "listen", "7090", "tcp"},
		{RACK_STORE, "kv", "quic_listen", "7091", "udp"},
		{RACK_METRICS, "metrics", "listen", "9092", "tcp"},
	};
	for (size_t i = 0; i < CGN_COUNT(ports); i++)
		if (rack_has(h, ports[i].role))
			port_put(h, ports[i].section, ports[i].key, ports[i].port, ports[i].protocol, out);
}
