/* SPDX-License-Identifier: Apache-2.0 */
/* crl: follows the file of security.crl_file, and says when its list ends. */

#include "base/core/utc.h"
#include "base/log/log.h"
#include "joint/daemon/svc/svc_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define LOOK_EVERY (2 * CGN_SEC)
#define SAY_EVERY  ((uint64_t)3600) /* Seconds. */

static void crl_log_taken(const struct svc_crl *c, const char *event)
{
	struct tls_crl_facts f = tls_crl_facts(c->list);
	cgn_log(INFO, event, F_STR("file", c->file), F_U64("revoked", f.revoked), F_U64("ends", f.ends));
}

static void expiry_log(struct svc_crl *c, const struct tls_crl_facts *f, uint64_t now)
{
	static const char todo[] = "cgn-ctl pki crl --renew, where the CA's key is, and put the file here";
	char when[40];
	(void)cgn_utc_text((int64_t)f->ends, "%Y-%m-%d %H:%M:%S UTC", when, sizeof when);
	c->said = now;
	if (now >= f->ends)
		cgn_log(ERROR, "svc.crl_over", F_STR("file", c->file), F_STR("ended", when),
			F_STR("then", "it stays in use, but later revocations may be missing from it"),
			F_STR("do", todo));
	else
		cgn_log(WARN, "svc.crl_ends", F_STR("file", c->file), F_STR("ends", when), F_STR("do", todo));
}

static void crl_show(struct svc_crl *c)
{
	struct tls_crl_facts f = tls_crl_facts(c->list);
	struct tls_validity v = {f.made, f.ends};
	uint64_t now = cgn_clock_wall_ms() / 1000;
	metric_set(c->cell_ends, (double)f.ends);
	metric_set(c->cell_revoked, (double)f.revoked);
	metric_add(c->cell_peers, f.refused - c->refused);
	c->refused = f.refused;
	if (f.ends != 0 && svc_cert_ends_soon(&v, now) && now >= c->said + SAY_EVERY)
		expiry_log(c, &f, now);
}

/* Returns false, with |why|, when the old list stays. */
static bool crl_take(struct svc_crl *c, struct cgn_err *why)
{
	if (cgn_ok(tls_crl_reload(c->list, why))) {
		c->said = 0;
		crl_log_taken(c, "svc.crl_taken");
		return true;
	}
	metric_add(c->cell_failures, 1);
	cgn_log(ERROR, "svc.crl_refused", F_STR("why", why->msg),
		F_STR("then", "the list that was read before stays"),
		F_STR("do", "put a valid list there: cgn-ctl pki crl --renew makes one"));
	return false;
}

CGN_RC svc_crl_reload(struct svc_crl *c, struct cgn_err *err)
{
	struct cgn_err why;
	if (c->list == NULL || crl_take(c, &why))
		return CGN_OK;
	return CGN_FAIL(err, TLS, "%s", why.msg);
}

static void on_time(struct cgn_timer *t)
{
	struct svc_crl *c = CGN_CONTAINER(t, struct svc_crl, timer);
	struct cgn_err why;
	if (tls_crl_changed(c->list))
		(void)crl_take(c, &why);
	crl_show(c);
	cgn_timer_set(t, LOOK_EVERY);
}

CGN_RC svc_crl_open(struct svc_crl *c, struct cgn_loop *l, struct telemetry *t, const struct config *cfg,
	struct cgn_err *err)
{
	if (cfg->security.crl_file == NULL)
		return CGN_OK;
	cgn_timer_init(&c->timer, l, on_time);
	c->file = cfg->security.crl_file;
	c->cell_ends = METRIC_ONE(t, CRL_ENDS);
	c->cell_revoked = METRIC_ONE(t, CRL_REVOKED);
	c->cell_failures = METRIC_ONE(t, CRL_FAILURES);
	c->cell_peers = METRIC_ONE(t, CRL_PEERS);
	CGN_TRY(tls_crl_get(c->file, cfg->security.ca_file, &c->list, err));
	crl_log_taken(c, "svc.crl");
	cgn_timer_set(&c->timer, 0);
	return CGN_OK;
}

void svc_crl_close(struct svc_crl *c)
{
	if (c->list == NULL)
		return;
	cgn_timer_cancel(&c->timer);
	tls_crl_free(&c->list);
}
