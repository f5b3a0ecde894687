/* SPDX-License-Identifier: Apache-2.0 */
/* certs: shows when certificates end, in the metric and early enough in the log. */

#include "base/core/utc.h"
#include "base/log/log.h"
#include "joint/daemon/svc/svc_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define LOOK_EVERY (60 * CGN_SEC)
#define SAY_EVERY  ((uint64_t)24 * 3600) /* Seconds, as all times below. */
#define LONG_TERM  ((uint64_t)14 * 24 * 3600)

/* Two weeks are enough to act. A certificate that lives for a few days is renewed by a machine, which is late
 * when a third of the life is left. */
bool svc_cert_ends_soon(const struct tls_validity *v, uint64_t now)
{
	uint64_t third = (v->to - v->from) / 3;
	return now + (third < LONG_TERM ? third : LONG_TERM) >= v->to;
}

static void expiry_log(struct svc_cert *c, const struct tls_validity *v, uint64_t now)
{
	char when[40];
	(void)cgn_utc_text((int64_t)v->to, "%Y-%m-%d %H:%M:%S UTC", when, sizeof when);
	c->said = now;
	if (now >= v->to)
		cgn_log(ERROR, "svc.certificate_over", F_STR("key", c->key), F_STR("ended", when),
			F_STR("do",
				"put a new certificate and key in their files, then SIGHUP; until then peers refuse this one"));
	else
		cgn_log(WARN, "svc.certificate_ends", F_STR("key", c->key), F_STR("ends", when),
			F_U64("days", (v->to - now) / (24 * 3600)),
			F_STR("do", "put a new certificate and key in their files, then SIGHUP"));
}

static void cert_check(struct svc_cert *c)
{
	struct tls_validity v;
	uint64_t now = cgn_clock_wall_ms() / 1000;
	if (!tls_ctx_validity(c->tls, &v))
		return;
	metric_set(c->cell, (double)v.to);
	if (v.to != c->said_of)
		c->said = 0;
	c->said_of = v.to;
	if (svc_cert_ends_soon(&v, now) && now >= c->said + SAY_EVERY)
		expiry_log(c, &v, now);
}

static void on_time(struct cgn_timer *t)
{
	struct svc_certs *cs = CGN_CONTAINER(t, struct svc_certs, timer);
	for (size_t i = 0; i < cs->n; i++)
		cert_check(&cs->cert[i]);
	cgn_timer_set(t, LOOK_EVERY);
}

void svc_certs_init(struct svc_certs *cs, struct cgn_loop *l)
{
	*cs = (struct svc_certs){.n = 0};
	cgn_timer_init(&cs->timer, l, on_time);
}

void svc_certs_add(struct svc_certs *cs, struct telemetry *t, const char *key, struct tls_ctx *tls)
{
	if (tls == NULL)
		return;
	CGN_MUST(cs->n < SVC_MAX_CERTS);
	tls_ctx_ref(tls);
	cs->cert[cs->n++] = (struct svc_cert){.key = key, .tls = tls, .cell = METRIC_OF(t, TLS_EXPIRY, key)};
	cgn_timer_set(&cs->timer, 0);
}

void svc_certs_again(struct svc_certs *cs)
{
	if (cs->n > 0)
		cgn_timer_set(&cs->timer, CGN_SEC); /* The program reads the certificates first. */
}

void svc_certs_fini(struct svc_certs *cs)
{
	cgn_timer_cancel(&cs->timer);
	for (size_t i = 0; i < cs->n; i++)
		tls_ctx_free(&cs->cert[i].tls);
	cs->n = 0;
}
