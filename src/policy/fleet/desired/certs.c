/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/fleet/desired/certs.h"

#include "base/codec/codec.h"
#include "policy/config/config.h"
#include "policy/fleet/desired/desired_priv.h"
#include "policy/who/identity/identity.h"

#define LIFE           ((int64_t)90 * 86400)
#define AUTHORITY_LIFE ((int64_t)3650 * 86400)

/* ---- the plan ---- */

static const struct {
	const char *component, *roles;
	bool named; /* Clients find it by the Service NAME-COMPONENT. */
	bool node;  /* Pods of pools: the name of the Service NAME-agents stands for all of them. */
} components[] = {
	{"router", "router", true, false}, {"agent", "agent", false, true},
	{"kvcached", "kvcached", false, true}, {"metrics", "metrics viewer", true, false},
	{"admin", "operator", false, false}, /* For people: cgn-ctl. */
};
_Static_assert(CGN_COUNT(components) == CERTS_LEAVES, "one certificate for each component");

static bool is_wanted(struct json_val cluster, const char *component)
{
	struct json_val v;
	if (strcmp(component, "kvcached") == 0)
		return desired_number(cluster, "kvcached", "ramGib", 0) > 0 || desired_stores(cluster) > 0;
	if (strcmp(component, "metrics") == 0)
		return !desired_spec(cluster, "metrics", "enabled", &v) || json_bool(v, true);
	return true;
}

static CGN_RC name_add(struct certs_plan *p, struct certs_leaf *l, struct cgn_str name, struct cgn_err *err)
{
	if (l->n_names == CERTS_NAMES || p->n_text == CGN_COUNT(p->text) ||
		!cgn_str_copyz(p->text[p->n_text], sizeof p->text[0], name))
		return CGN_FAIL(err, INVALID,
			"the certificate of %s would have too many names, or one that is too long: shorten spec.security.dnsNames",
			l->component);
	l->names[l->n_names++] = p->text[p->n_text++];
	return CGN_OK;
}

/* Add "HOST", "HOST.SPACE", "HOST.SPACE.svc" and that of the usual domain. */
static CGN_RC service_add(struct certs_plan *p, struct certs_leaf *l, const char *host, const char *space,
	struct cgn_err *err)
{
	static const char *const ends[] = {"", ".svc", ".svc.cluster.local"};
	char name[CERTS_NAME_MAX];
	CGN_TRY(name_add(p, l, cgn_str_of(host), err));
	for (size_t i = 0; i < CGN_COUNT(ends); i++) {
		int n = snprintf(name, sizeof name, "%s.%s%s", host, space, ends[i]);
		if (n < 0 || (size_t)n >= sizeof name)
			return CGN_FAIL(err, INVALID, "the name of Service %s is too long for a certificate",
				host);
		CGN_TRY(name_add(p, l, cgn_str_of(name), err));
	}
	return CGN_OK;
}

static CGN_RC dns_names_add(struct json_val cluster, struct certs_plan *p, struct certs_leaf *l,
	struct cgn_err *err)
{
	struct json_val names, one;
	size_t n = 0;
	if (!desired_spec(cluster, "security", "dnsNames", &names) || names.type != JSON_ARRAY)
		return CGN_OK;
	for (struct json_iter it = json_iter_of(names); n < CERTS_DNS_MOST && json_next_elem(&it, &one);
		n++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
		if (one.type != JSON_STRING)
			continue;
		json_str_to(one, &text);
		CGN_TRY(name_add(p, l, cgn_buf_view(&text), err));
	}
	return CGN_OK;
}

static CGN_RC roles_add(struct certs_plan *p, struct certs_leaf *l, const char *roles, const char *cluster,
	const char *node, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(roles);
	while (rest.n > 0) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf uri = {.n = 0};
		const struct identity_uri u = {cgn_str_of(cluster), cgn_str_split(&rest, ' '),
			cgn_str_of(node)};
		if (!identity_uri_part_ok(u.cluster) || !identity_uri_part_ok(u.node))
			return CGN_FAIL(err, INVALID, "\"%.60s\" cannot stand in a certificate", cluster);
		identity_uri_put(&u, &uri);
		CGN_TRY(name_add(p, l, cgn_buf_view(&uri), err));
	}
	return CGN_OK;
}

static CGN_RC leaf_plan(struct json_val cluster, struct certs_plan *p, size_t which, const char *name,
	const char *space, const char *cluster_name, struct cgn_err *err)
{
	static const char *const local[] = {"localhost", "127.0.0.1", "::1"};
	struct certs_leaf *l = &p->leaf[p->n++];
	char host[DESIRED_NAME_MAX];
	*l = (struct certs_leaf){.component = components[which].component};
	(void)snprintf(l->secret, sizeof l->secret, "%.60s-%s-tls", name, l->component);
	(void)snprintf(host, sizeof host, "%.60s-%s", name,
		components[which].node ? "agents" : components[which].component);
	if (components[which].named || components[which].node)
		CGN_TRY(service_add(p, l, host, space, err));
	for (size_t i = 0; i < CGN_COUNT(local); i++)
		CGN_TRY(name_add(p, l, cgn_str_of(local[i]), err));
	if (components[which].named)
		CGN_TRY(dns_names_add(cluster, p, l, err));
	return roles_add(p, l, components[which].roles, cluster_name, host, err);
}

static int64_t life_of(struct json_val cluster, const char *key, int64_t fallback)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	cgn_nsec life;
	desired_text(cluster, "security", key, "", &text);
	return config_duration(cgn_buf_view(&text), &life) && life >= CGN_SEC ? (int64_t)(life / CGN_SEC)
									      : fallback;
}

bool desired_is_secured(struct json_val cluster)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf mode = {.n = 0};
	desired_text(cluster, "security", "mode", "mutual-tls", &mode);
	return !cgn_str_is(cgn_buf_view(&mode), "insecure");
}

/* ---- revoked certificates ---- */

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

bool certs_serial(struct cgn_str hex, char out[CERTS_SERIAL])
{
	size_t n = 0;
	for (size_t i = 0; i < hex.n; i++) {
		char c = hex.p[i] >= 'A' && hex.p[i] <= 'F' ? (char)(hex.p[i] + 'a' - 'A') : hex.p[i];
		if (c == ':')
			continue;
		if (!is_hex(c) || n + 1 == CERTS_SERIAL)
			return false;
		out[n++] = c;
		if (n == 2 && out[0] == '0' && out[1] == '0')
			n = 0;
	}
	out[n] = '\0';
	return n > 0 && n % 2 == 0;
}

bool certs_is_revoked(const struct certs_plan *p, const char *serial)
{
	char plain[CERTS_SERIAL];
	if (!certs_serial(cgn_str_of(serial), plain))
		return false;
	for (size_t i = 0; i < p->n_revoked; i++)
		if (strcmp(p->revoked[i], plain) == 0)
			return true;
	return false;
}

static CGN_RC revoked_read(struct json_val cluster, struct certs_plan *p, struct cgn_err *err)
{
	struct json_val list = {.type = JSON_NULL}, one;
	p->revokes = desired_is_revoking(cluster) && desired_spec(cluster, "security", "revoked", &list);
	if (!p->revokes)
		return CGN_OK;
	for (struct json_iter it = json_iter_of(list);
		p->n_revoked < CERTS_REVOKED && json_next_elem(&it, &one);) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
		if (one.type == JSON_STRING)
			json_str_to(one, &text);
		if (!certs_serial(cgn_buf_view(&text), p->revoked[p->n_revoked]))
			return CGN_FAIL(err, INVALID,
				"spec.security.revoked has \"%.60s\", which is not a serial number of a certificate",
				cgn_buf_z(&text));
		p->n_revoked++;
	}
	return CGN_OK;
}

bool desired_is_revoking(struct json_val cluster)
{
	struct json_val v;
	return desired_is_secured(cluster) && desired_spec(cluster, "security", "revoked", &v) &&
		v.type == JSON_ARRAY;
}

CGN_RC certs_plan_read(struct json_val cluster, struct certs_plan *out, struct cgn_err *err)
{
	char name[64], space[64], cluster_name[DESIRED_NAME_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf secret = {.n = 0};
	*out = (struct certs_plan){.secured = desired_is_secured(cluster),
		.life = life_of(cluster, "certificateLifetime", LIFE),
		.authority_life = life_of(cluster, "authorityLifetime", AUTHORITY_LIFE)};
	if (!out->secured)
		return CGN_OK;
	if (!desired_meta(cluster, "name", name, sizeof name) ||
		!desired_meta(cluster, "namespace", space, sizeof space))
		return CGN_FAIL(err, INVALID, "the InferenceCluster has no name");
	CGN_TRY(revoked_read(cluster, out, err));
	desired_cluster_name(cluster, cluster_name, sizeof cluster_name);
	(void)snprintf(out->authority_name, sizeof out->authority_name, "%.48s cluster CA", cluster_name);
	desired_text(cluster, "security", "existingSecret", "", &secret);
	out->own = secret.n == 0;
	if (out->own)
		(void)snprintf(out->authority, sizeof out->authority, "%.60s-ca", name);
	else if (!cgn_str_copyz(out->authority, sizeof out->authority, cgn_buf_view(&secret)))
		return CGN_FAIL(err, INVALID, "spec.security.existingSecret is longer than a name may be");
	for (size_t i = 0; i < CGN_COUNT(components); i++)
		if (is_wanted(cluster, components[i].component))
			CGN_TRY(leaf_plan(cluster, out, i, name, space, cluster_name, err));
	return CGN_OK;
}

/* ---- when ---- */

static int64_t renewal_of(const struct certs_facts *f)
{
	return f->to - (f->to - f->from) / 3;
}

static int64_t least_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* An authority begins a skew before it is made: certs_period_of. */
int64_t certs_known_at(int64_t from, int64_t to)
{
	return from + least_of((to - from) / 11, CERTS_SKEW) + least_of((to - from) / 20, CERTS_OVERLAP);
}

static struct certs_judgement certs_issue(const char *why, int64_t now)
{
	return (struct certs_judgement){CERTS_ISSUE, why, now};
}

struct certs_judgement certs_judge_leaf(const struct certs_facts *f, int64_t signs_from, int64_t now)
{
	int64_t renewal = renewal_of(f);
	if (!f->there)
		return certs_issue("it was missing", now);
	if (f->broken)
		return certs_issue("certificate and key could not be used", now);
	if (f->revoked)
		return certs_issue("it was revoked", now);
	if (now >= f->to)
		return certs_issue("it was over", now);
	if (!f->ours && !f->trusted)
		return certs_issue("its authority is not trusted", now);
	if (!f->named)
		return certs_issue("its names had changed", now);
	if (!f->ours && now >= signs_from)
		return certs_issue("there is a new authority", now);
	if (f->ours && now >= renewal)
		return certs_issue("two thirds of its life were over", now);
	return (struct certs_judgement){CERTS_KEEP, NULL, f->ours ? renewal : least_of(signs_from, f->to)};
}

struct certs_judgement certs_judge_authority(const struct certs_facts *f, int64_t now)
{
	if (!f->there)
		return certs_issue("it was missing", now);
	if (f->broken)
		return (struct certs_judgement){CERTS_BROKEN, "certificate and key cannot be used", now};
	if (now >= f->to)
		return certs_issue("it was over", now);
	if (now >= renewal_of(f))
		return certs_issue("two thirds of its life were over", now);
	return (struct certs_judgement){CERTS_KEEP, NULL, renewal_of(f)};
}

struct certs_period certs_period_of(int64_t life, int64_t least, int64_t most, int64_t now)
{
	int64_t skew = least_of(life / 10, CERTS_SKEW);
	struct certs_period p = {now - skew, now + life};
	if (p.from < least)
		p.from = least;
	if (most != 0 && p.to > most)
		p.to = most;
	return p;
}

/* ---- the Secrets ---- */

static void text_put(struct json_out *o, const char *key, struct cgn_str text)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf coded = {.n = 0};
	base64_put(&coded, text);
	json_key_str(o, key, cgn_buf_view(&coded));
}

CGN_RC certs_secret_put(struct json_val cluster, const char *name, const char *component,
	const struct certs_texts *texts, struct desired_set *out, struct cgn_err *err)
{
	static const struct desired_images none = {"", ""};
	struct desired_owner w;
	CGN_TRY(desired_owner_read(cluster, DESIRED_CLUSTER, &none, out, &w, err));
	desired_cluster_name(cluster, w.cluster, sizeof w.cluster);
	struct json_out o = desired_begin(&w, DESIRED_SECRET, name, component);
	json_key_z(&o, "type", "kubernetes.io/tls");
	json_key_open(&o, "data", '{');
	text_put(&o, "tls.crt", texts->cert);
	text_put(&o, "tls.key", texts->key);
	text_put(&o, "ca.crt", texts->bundle);
	if (texts->crl.n > 0)
		text_put(&o, "crl.pem", texts->crl);
	json_close(&o, '}');
	desired_end(&w, &o);
	return out->text.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the Secret %s", name) : CGN_OK;
}
