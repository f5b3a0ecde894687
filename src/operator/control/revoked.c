/* SPDX-License-Identifier: Apache-2.0 */
/* revoked: the lists of revoked certificates (CRLs) of a cluster, which its Secrets have beside the authorities: one of the
 * authority that signs now, and those that earlier ones have left behind. A list grows only: a serial number that is taken out of
 * spec.security.revoked stays revoked. */
#include "io/net/pki/bundle.h"
#include "io/net/pki/crl.h"
#include "operator/control/control_priv.h"

#define LIST_LIFE ((int64_t)30 * 86400)

/* Append the lists of |old| that an authority of the bundle has signed: programs refuse others. */
static void lists_keep(const struct work_certs *c, struct cgn_str old, struct cgn_buf *out)
{
	while (old.n > 0) {
		struct cgn_str one = pki_first(old);
		size_t n = (size_t)(one.p - old.p) + one.n;
		if (one.n == 0 || n > old.n)
			return;
		if (pki_crl_signed_by(cgn_buf_view(&c->bundle), one))
			cgn_buf_str(out, one);
		old = (struct cgn_str){old.p + n, old.n - n};
	}
}

/* Facts of the list of the authority that signs now. */
struct list_facts {
	const struct certs_plan *plan;
	bool has[CERTS_REVOKED]; /* By place in the plan. */
	size_t n;
	struct pki_validity when;
};

static CGN_RC list_look(void *user, const struct pki_crl_info *info, struct cgn_err *err)
{
	struct list_facts *f = user;
	(void)err;
	f->when = info->when;
	return CGN_OK;
}

static CGN_RC entry_look(void *user, const char *serial, int64_t when, struct cgn_err *err)
{
	struct list_facts *f = user;
	char plain[CERTS_SERIAL];
	(void)when;
	(void)err;
	for (size_t i = 0; certs_serial(cgn_str_of(serial), plain) && i < f->plan->n_revoked; i++)
		if (!f->has[i] && strcmp(f->plan->revoked[i], plain) == 0) {
			f->has[i] = true;
			f->n++;
		}
	return CGN_OK;
}

/* Read the facts of the first of |lists|; false: it is not that of the authority that signs now. */
static bool list_read(const struct work_certs *c, struct cgn_str lists, struct list_facts *out)
{
	struct cgn_str one = pki_first(lists);
	*out = (struct list_facts){.plan = c->plan};
	const struct pki_crl_reader reader = {list_look, entry_look, out};
	return lists.n > 0 && pki_crl_signed_by(pki_first(cgn_buf_view(&c->ca.cert)), one) &&
		cgn_ok(pki_crl_read(one, &reader, NULL));
}

static CGN_RC list_make(struct work *w, const struct cgn_buf *kept, bool held, int64_t now,
	struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	const char *serials[CERTS_REVOKED + 1];
	char why[40];
	size_t n = 0, added = 0;
	for (size_t i = 0; !held && i < c->plan->n_revoked; i++)
		serials[n++] = c->plan->revoked[i];
	serials[n] = NULL;
	CGN_TRY(pki_crl_make(&c->ca, cgn_buf_view(kept), serials,
		(struct pki_validity){now - CERTS_SKEW, now + LIST_LIFE}, &c->crl, &added, err));
	(void)snprintf(why, sizeof why, "%zu certificates more", added);
	if (added > 0)
		certs_note(w, "CertificatesRevoked", "the list of revoked certificates", why);
	return CGN_OK;
}

CGN_RC revoked_make(struct work *w, struct cgn_str old, int64_t held_until, struct cgn_err *err)
{
	struct work_certs *c = &w->certs;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf kept = {.n = 0};
	struct list_facts f;
	int64_t now = (int64_t)(cgn_clock_wall_ms() / 1000);
	bool held = now < held_until;
	lists_keep(c, old, &kept);
	bool there = list_read(c, cgn_buf_view(&kept), &f);
	int64_t renewal = f.when.from + LIST_LIFE * 2 / 3;
	bool waits = f.n < c->plan->n_revoked; /* Serial numbers that are not in the list yet. */
	if (there && now < renewal && (!waits || held))
		cgn_buf_str(&c->crl, cgn_buf_view(&kept));
	else
		CGN_TRY(list_make(w, &kept, held, now, err));
	int64_t look_at = waits && held ? held_until : there && now < renewal ? renewal : now + LIST_LIFE / 2;
	if (look_at < c->look_at)
		c->look_at = look_at;
	return c->crl.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the list of revoked certificates")
			  : CGN_OK;
}
