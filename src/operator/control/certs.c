/* SPDX-License-Identifier: Apache-2.0 */
/* certs: the authority and the certificates of a cluster: what its Secrets have is judged, and made again when it is due. The
 * authority is read from the API server before one is made, and one that is there but cannot be read or used is never replaced. */
#include <stdlib.h>

#include "base/core/utc.h"
#include "base/log/log.h"
#include "io/net/pki/bundle.h"
#include "io/net/pki/request.h"
#include "operator/control/control_priv.h"

#define OTHERS_LOOK 300 /* Seconds after which another's authority, which is not watched, is read again. */

static int64_t unix_now(void)
{
	return (int64_t)(cgn_clock_wall_ms() / 1000);
}

/* End with a condition that names the error; the work is tried again. */
static void certs_fail(struct work *w, const char *reason, const char *message)
{
	w->certs.reason = reason;
	(void)cgn_str_copyz(w->certs.message, sizeof w->certs.message, cgn_str_of(message));
	(void)CGN_FAIL(&w->err, INVALID, "%s", message);
	w->failed = true;
	status_write(w);
}

void certs_note(struct work *w, const char *made, const char *secret, const char *why)
{
	if (w->certs.made == NULL || strcmp(made, "AuthorityIssued") == 0)
		w->certs.made = made;
	cgn_buf_fmt(&w->certs.note, "%s%s (%s)", w->certs.note.n > 0 ? ", " : "", secret, why);
	cgn_log(INFO, "operator.certificate_made", F_STR("cluster", w->resource->key),
		F_STR("secret", secret), F_STR("why", why));
}

static const struct item *secret_item(struct work *w, const char *name)
{
	char key[CONTROL_KEY];
	int n = snprintf(key, sizeof key, "%s/%s", w->space, name);
	const struct item *i = n > 0 && (size_t)n < sizeof key ? item_find(w->c, DESIRED_SECRET, key) : NULL;
	return i != NULL && i->tls != NULL ? i : NULL;
}

static bool cluster_parse(struct work *w, struct json_val *out)
{
	const struct item *i = w->resource;
	return i->text != NULL && cgn_ok(json_parse((struct cgn_str){i->text, i->bytes}, out, NULL, &w->err));
}

/* ---- leaves ---- */

static bool names_equal(const struct pki_info *in, const struct certs_leaf *l)
{
	size_t same = 0;
	for (size_t i = 0; i < l->n_names; i++)
		same += pki_info_has(in, l->names[i]);
	return same == l->n_names && in->n_names == l->n_names;
}

static struct certs_facts facts_of(const struct item_tls *t, struct pki_info *in)
{
	struct certs_facts f = {.there = t != NULL && (t->pair.cert.n > 0 || t->pair.key.n > 0)};
	if (!f.there)
		return f;
	f.broken = !cgn_ok(pki_inspect(cgn_buf_view(&t->pair.cert), in, NULL)) ||
		!pki_is_pair(cgn_buf_view(&t->pair.cert), cgn_buf_view(&t->pair.key));
	f.from = in->when.from;
	f.to = in->when.to;
	return f;
}

/* Certificates that were made, by their place in the plan; empty: that of the Secret is kept. */
struct leaves_made {
	struct pki_pair pair[CERTS_LEAVES];
	int64_t known_at; /* When all pods have the youngest certificate. */
};

static void leaves_fini(struct leaves_made *m)
{
	for (size_t i = 0; i < CERTS_LEAVES; i++)
		pki_pair_fini(&m->pair[i]);
}

/* Judge a certificate, and make it again if it is due. */
static CGN_RC leaf_make(struct work *w, size_t at, struct leaves_made *out, struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	const struct certs_leaf *l = &c->plan->leaf[at];
	const struct item *i = secret_item(w, l->secret);
	struct pki_info in = {.n_names = 0};
	struct certs_facts f = facts_of(i != NULL ? i->tls : NULL, &in);
	int64_t now = unix_now();
	if (f.there && !f.broken) {
		struct cgn_str pem = cgn_buf_view(&i->tls->pair.cert);
		f.revoked = certs_is_revoked(c->plan, in.serial);
		f.named = names_equal(&in, l);
		f.ours = pki_bundle_signed(pki_first(cgn_buf_view(&c->ca.cert)), pem);
		f.trusted = f.ours || pki_bundle_signed(cgn_buf_view(&c->bundle), pem);
	}
	struct certs_judgement j = certs_judge_leaf(&f, certs_known_at(c->ca_from, c->ca_to), now);
	if (j.verdict == CERTS_ISSUE) {
		struct certs_period p = certs_period_of(c->plan->life, c->ca_from, c->ca_to, now);
		char cn[64];
		(void)snprintf(cn, sizeof cn, "%.60s", l->component);
		CGN_TRY(pki_make_leaf(&c->ca, cn, l->names, (struct pki_validity){p.from, p.to},
			&out->pair[at], err));
		certs_note(w, f.there ? "CertificatesRenewed" : "CertificatesIssued", l->secret, j.why);
		const struct certs_facts fresh = {.there = true,
			.named = true,
			.ours = true,
			.from = p.from,
			.to = p.to};
		f = fresh;
		j = certs_judge_leaf(&f, 0, now);
	}
	if (c->ends == 0 || f.to < c->ends)
		c->ends = f.to;
	if (j.look_at < c->look_at)
		c->look_at = j.look_at;
	if (certs_known_at(f.from, f.to) > out->known_at)
		out->known_at = certs_known_at(f.from, f.to);
	return CGN_OK;
}

static CGN_RC leaf_put(struct work *w, struct json_val cluster, size_t at, const struct leaves_made *made,
	struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	const struct certs_leaf *l = &c->plan->leaf[at];
	const struct item *i = secret_item(w, l->secret);
	const struct pki_pair *pair =
		made->pair[at].cert.n > 0 || i == NULL ? &made->pair[at] : &i->tls->pair;
	const struct certs_texts texts = {cgn_buf_view(&pair->cert), cgn_buf_view(&pair->key),
		cgn_buf_view(&c->bundle), cgn_buf_view(&c->crl)};
	return certs_secret_put(cluster, l->secret, CERTS_LEAF, &texts, &w->set, err);
}

/* Return the lists of revoked certificates that a Secret has; empty: none has. */
static struct cgn_str lists_find(struct work *w)
{
	for (size_t i = 0; i < w->certs.plan->n; i++) {
		const struct item *leaf = secret_item(w, w->certs.plan->leaf[i].secret);
		if (leaf != NULL && leaf->tls->crl.n > 0)
			return cgn_buf_view(&leaf->tls->crl);
	}
	return CGN_STR("");
}

/* ---- the authority ---- */

static CGN_RC authority_new(struct work *w, const char *was, struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	char name[80];
	struct certs_period p = certs_period_of(c->plan->authority_life, 0, 0, unix_now());
	if (was != NULL)
		pki_next_name(was, name, sizeof name);
	else
		(void)cgn_str_copyz(name, sizeof name, cgn_str_of(c->plan->authority_name));
	pki_pair_fini(&c->ca);
	c->ca_from = p.from;
	c->ca_to = p.to;
	return pki_make_ca(name, (struct pki_validity){p.from, p.to}, &c->ca, err);
}

/* Replace our authority when it is due. The old one stays in the bundle until it is over, and its key is gone. */
static CGN_RC authority_renew(struct work *w, const char *was, const char *why, struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf old = c->bundle;
	c->bundle = (struct cgn_buf){.n = 0};
	CGN_TRY(authority_new(w, was, err));
	CGN_TRY(pki_bundle_add(&c->bundle, cgn_buf_view(&c->ca.cert), unix_now(), err));
	CGN_TRY(pki_bundle_add(&c->bundle, cgn_buf_view(&old), unix_now(), err));
	certs_note(w, "AuthorityIssued", c->plan->authority, why);
	return CGN_OK;
}

static CGN_RC everything_put(struct work *w, struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	const struct certs_texts texts = {cgn_buf_view(&c->ca.cert), cgn_buf_view(&c->ca.key),
		cgn_buf_view(&c->bundle), {NULL, 0}};
	struct json_val cluster;
	if (!cluster_parse(w, &cluster))
		return CGN_FAIL(err, NOT_FOUND, "the InferenceCluster is gone");
	if (c->plan->own)
		CGN_TRY(certs_secret_put(cluster, c->plan->authority, CERTS_AUTHORITY, &texts, &w->set, err));
	CGN_ON_EXIT(leaves_fini) struct leaves_made made = {.known_at = 0};
	for (size_t i = 0; i < c->plan->n; i++)
		CGN_TRY(leaf_make(w, i, &made, err));
	if (c->plan->revokes)
		CGN_TRY(revoked_make(w, lists_find(w), made.known_at, err));
	for (size_t i = 0; i < c->plan->n; i++)
		CGN_TRY(leaf_put(w, cluster, i, &made, err));
	return CGN_OK;
}

/* Everything is made of the authority in |w|. */
static void certs_finish(struct work *w)
{
	struct work_certs *c = &w->certs;
	char authority[40];
	struct cgn_err err = {.msg = ""};
	if (!cgn_ok(everything_put(w, &err))) {
		certs_fail(w, "IssueFailed", err.msg);
		return;
	}
	if (!c->plan->own && c->look_at > unix_now() + OTHERS_LOOK)
		c->look_at = unix_now() + OTHERS_LOOK;
	(void)cgn_utc_text(c->ends, "%Y-%m-%dT%H:%M:%SZ", c->ends_text, sizeof c->ends_text);
	(void)cgn_utc_text(c->ca_to, "%Y-%m-%dT%H:%M:%SZ", authority, sizeof authority);
	c->ready = true;
	c->reason = "Issued";
	(void)snprintf(c->message, sizeof c->message,
		"%zu certificates, of which the first ends %s; they are renewed when two thirds of their life are over. The authority in Secret %.80s ends %s",
		c->plan->n, c->ends_text, c->plan->authority, authority);
	work_objects(w);
}

/* Use the authority of a Secret, if it can be used. */
static void authority_use(struct work *w, const struct item_tls *t)
{
	struct work_certs *c = &w->certs;
	struct pki_info in = {.n_names = 0};
	struct certs_facts f = facts_of(t, &in);
	struct cgn_err err = {.msg = ""};
	char message[320];
	int64_t now = unix_now();
	f.broken = f.there && (f.broken || !in.is_ca);
	struct certs_judgement j = certs_judge_authority(&f, now);
	if (!f.there || j.verdict == CERTS_BROKEN || (!c->plan->own && now >= f.to)) {
		(void)snprintf(message, sizeof message,
			"Secret %.100s: tls.crt and tls.key are not an authority that can sign: %s. Restore them%s",
			c->plan->authority,
			!f.there           ? "they are missing"
				: f.broken ? "they cannot be read, or do not fit"
					   : "it is over",
			c->plan->own ? ", or delete the Secret for a new authority" : "");
		certs_fail(w, "AuthorityBroken", message);
		return;
	}
	c->ca_from = f.from;
	c->ca_to = f.to;
	c->look_at = c->plan->own ? j.look_at : now + OTHERS_LOOK;
	cgn_buf_str(&c->ca.cert, cgn_buf_view(&t->pair.cert));
	cgn_buf_str(&c->ca.key, cgn_buf_view(&t->pair.key));
	(void)cgn_buf_z(&c->ca.cert);
	(void)cgn_buf_z(&c->ca.key);
	cgn_rc rc = pki_bundle_add(&c->bundle, cgn_buf_view(&t->pair.cert), now, &err);
	if (cgn_ok(rc))
		rc = pki_bundle_add(&c->bundle, cgn_buf_view(&t->bundle), now, &err);
	if (cgn_ok(rc) && c->plan->own && j.verdict == CERTS_ISSUE) {
		rc = authority_renew(w, in.subject, j.why, &err);
		c->look_at = certs_known_at(c->ca_from, c->ca_to);
	}
	if (!cgn_ok(rc))
		certs_fail(w, "IssueFailed", err.msg);
	else
		certs_finish(w);
}

static void authority_created(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	char key[CONTROL_KEY];
	w->call = NULL;
	desired_set_fini(&w->set);
	if (a->err->code != CGN_FINE) { /* Another one made it meanwhile: the next attempt reads it. */
		certs_fail(w, "IssueFailed", a->err->msg);
		return;
	}
	(void)snprintf(key, sizeof key, "%s/%s", w->space, w->certs.plan->authority);
	struct item *i = item_add(w->c, DESIRED_SECRET, key);
	if (i != NULL) {
		i->version = k8s_version(a->object);
		(void)desired_holder(a->object, i->holder);
		(void)item_tls_take(i, a->object);
	}
	certs_finish(w);
}

/* Make the first authority, or one after a Secret that was deleted: what the certificates trust stays trusted. */
static CGN_RC authority_create(struct work *w, struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct json_val cluster;
	struct pki_info in;
	if (!cluster_parse(w, &cluster))
		return CGN_FAIL(err, NOT_FOUND, "the InferenceCluster is gone");
	for (size_t i = 0; i < c->plan->n; i++) {
		const struct item *leaf = secret_item(w, c->plan->leaf[i].secret);
		if (leaf != NULL)
			CGN_TRY(pki_bundle_add(&c->bundle, cgn_buf_view(&leaf->tls->bundle), unix_now(),
				err));
	}
	bool again = cgn_ok(pki_inspect(cgn_buf_view(&c->bundle), &in, NULL));
	CGN_TRY(authority_renew(w, again ? in.subject : NULL,
		again ? "its Secret was gone" : "the cluster is new", err));
	c->look_at = certs_known_at(c->ca_from, c->ca_to);
	const struct certs_texts texts = {cgn_buf_view(&c->ca.cert), cgn_buf_view(&c->ca.key),
		cgn_buf_view(&c->bundle), {NULL, 0}};
	CGN_TRY(certs_secret_put(cluster, c->plan->authority, CERTS_AUTHORITY, &texts, &w->set, err));
	path_put(DESIRED_SECRET, w->space, NULL, &path);
	cgn_buf_putz(&path, "?fieldManager=" DESIRED_MANAGER);
	const struct k8s_request rq = {.method = "POST",
		.path = cgn_buf_z(&path),
		.body = desired_body(&w->set, &w->set.objects[0])};
	return k8s_call_start(w->c->k8s, &rq, authority_created, w, &w->call, err);
}

static void authority_got(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	const struct certs_plan *p = w->certs.plan;
	struct cgn_err err = {.msg = ""};
	char message[320];
	w->call = NULL;
	if (a->err->code == CGN_FINE) {
		struct item_tls t;
		secret_read(a->object, &t);
		authority_use(w, &t);
		item_tls_fini(&t);
		return;
	}
	if (a->err->code == CGN_NOT_FOUND && a->status == 404 && p->own) {
		if (!cgn_ok(authority_create(w, &err)))
			certs_fail(w, "IssueFailed", err.msg);
		return;
	}
	(void)snprintf(message, sizeof message, "Secret %.100s, the authority, cannot be read: %.150s",
		p->authority, a->err->msg);
	certs_fail(w, a->status == 404 ? "AuthorityMissing" : "AuthorityUnreadable", message);
}

void certs_begin(struct work *w)
{
	struct work_certs *c = &w->certs;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct json_val cluster;
	struct cgn_err err = {.msg = ""};
	const struct item *i;
	c->plan = CGN_NEW(struct certs_plan);
	if (!cluster_parse(w, &cluster)) {
		certs_fail(w, "IssueFailed", "no memory for the certificates");
		return;
	}
	if (!cgn_ok(certs_plan_read(cluster, c->plan, &w->err))) {
		status_write(w);
		return;
	}
	if (!c->plan->secured) {
		c->reason = "Insecure";
		(void)snprintf(c->message, sizeof c->message,
			"spec.security.mode is insecure: whoever reaches the ports of the programs may do everything there");
		work_objects(w);
		return;
	}
	if (c->plan->own && (i = secret_item(w, c->plan->authority)) != NULL) {
		authority_use(w, i->tls);
		return;
	}
	path_put(DESIRED_SECRET, w->space, c->plan->authority, &path);
	const struct k8s_request rq = {.method = "GET", .path = cgn_buf_z(&path)};
	if (!cgn_ok(k8s_call_start(w->c->k8s, &rq, authority_got, w, &w->call, &err)))
		certs_fail(w, "AuthorityUnreadable", err.msg);
}
