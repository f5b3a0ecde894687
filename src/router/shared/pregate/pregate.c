/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/pregate/pregate.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/seal/seal.h"
#include "joint/cluster/statefile/statefile.h"

#define KEPT_KIND   "cognitora-cascade-rates"
#define KEPT_FORMAT 1
#define FILE_MAX    ((size_t)128 * 1024) /* CASCADE_CELLS lines of at most 28 bytes fit. */
#define EVERY       (5 * CGN_SEC)

struct gw_pregate {
	struct statefile *file; /* with |write_timer|: on the control loop */
	struct cgn_timer write_timer;
	pthread_mutex_t lock; /* guards all that follows */
	bool changed;         /* since the file was written */
	struct cascade_rates rates;
};

/* Fill |text| with the file's content and return true, if there is something new. */
static bool rates_text(struct gw_pregate *p, struct cgn_buf *text)
{
	CGN_MUST(pthread_mutex_lock(&p->lock) == 0);
	bool changed = p->changed;
	if (changed) {
		seal_begin(text, KEPT_KIND, KEPT_FORMAT);
		cascade_rates_put(&p->rates, text);
		seal_end(text);
	}
	p->changed = false;
	CGN_MUST(pthread_mutex_unlock(&p->lock) == 0);
	return changed;
}

static void rates_write(struct cgn_timer *t)
{
	struct gw_pregate *p = CGN_CONTAINER(t, struct gw_pregate, write_timer);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	if (!statefile_is_busy(p->file) && rates_text(p, &text))
		statefile_write(p->file, &text);
	cgn_timer_set(t, EVERY);
}

static void rates_read(struct gw_pregate *p)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_str lines;
	struct cgn_err why;
	if (!statefile_read(p->file, FILE_MAX, &text))
		return;
	cgn_rc rc = seal_open(cgn_buf_view(&text), KEPT_KIND, KEPT_FORMAT, &lines, &why);
	if (cgn_ok(rc))
		rc = cascade_rates_take(lines, &p->rates, &why);
	if (!cgn_ok(rc)) {
		p->rates = (struct cascade_rates){.cells = {{.asked = 0}}};
		statefile_set_aside(p->file, why.msg);
	}
}

struct gw_pregate *gw_pregate_open(struct cgn_loop *l, const char *path)
{
	struct gw_pregate *p = CGN_NEW(struct gw_pregate);
	CGN_MUST(pthread_mutex_init(&p->lock, NULL) == 0);
	cgn_timer_init(&p->write_timer, l, rates_write);
	p->file = statefile_open(l, path, "rates of cascades");
	rates_read(p);
	cgn_timer_set(&p->write_timer, EVERY);
	return p;
}

void gw_pregate_close(struct gw_pregate **take)
{
	struct gw_pregate *p = *take;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	*take = NULL;
	if (p == NULL)
		return;
	cgn_timer_cancel(&p->write_timer);
	statefile_close(&p->file, rates_text(p, &text) ? &text : NULL);
	CGN_MUST(pthread_mutex_destroy(&p->lock) == 0);
	free(p);
}

bool gw_pregate_is_hopeless(struct gw_pregate *p, const struct cascade_group *g, double limit, double random)
{
	CGN_MUST(pthread_mutex_lock(&p->lock) == 0);
	bool hopeless = cascade_is_hopeless(&p->rates, g, limit, random);
	CGN_MUST(pthread_mutex_unlock(&p->lock) == 0);
	return hopeless;
}

void gw_pregate_learn(struct gw_pregate *p, const struct cascade_group *g, bool escalated)
{
	CGN_MUST(pthread_mutex_lock(&p->lock) == 0);
	cascade_learn(&p->rates, g, escalated);
	p->changed = true;
	CGN_MUST(pthread_mutex_unlock(&p->lock) == 0);
}
