/* SPDX-License-Identifier: Apache-2.0 */
/* shortage: says that the process runs out of descriptors. Listeners rest then; nothing else would tell why
 * clients wait. Also says once a second which log lines were left out. */
#include <sys/resource.h>

#include "base/log/log.h"
#include "joint/daemon/svc/svc_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define LOOK_EVERY CGN_SEC
#define SAY_EVERY  (30 * CGN_SEC)

static void shortage_log(struct svc_shortage *s, cgn_nsec now)
{
	struct rlimit most = {.rlim_cur = 0};
	(void)getrlimit(RLIMIT_NOFILE, &most);
	cgn_log(WARN, "svc.descriptors_exhausted", F_U64("limit", most.rlim_cur),
		F_U64("rests", s->seen - s->said),
		F_STR("then", "new connections wait until some are closed"),
		F_STR("do",
			"raise the limit of open files (LimitNOFILE), or lower the limit of connections"));
	s->said = s->seen;
	s->said_at = now;
}

static void on_time(struct cgn_timer *t)
{
	struct svc_shortage *s = CGN_CONTAINER(t, struct svc_shortage, timer);
	uint64_t total = net_exhausted_total();
	cgn_nsec now = cgn_loop_now(t->loop);
	metric_add(s->cell, total - s->seen);
	s->seen = total;
	if (s->seen > s->said && (s->said_at == 0 || cgn_since(now, s->said_at) >= SAY_EVERY))
		shortage_log(s, now);
	log_limits_tell();
	cgn_timer_set(t, LOOK_EVERY);
}

void svc_shortage_init(struct svc_shortage *s, struct cgn_loop *l, struct telemetry *t)
{
	*s = (struct svc_shortage){.cell = METRIC_ONE(t, DESCRIPTORS_EXHAUSTED),
		.seen = net_exhausted_total()};
	s->said = s->seen;
	cgn_timer_init(&s->timer, l, on_time);
	cgn_timer_set(&s->timer, LOOK_EVERY);
}

void svc_shortage_fini(struct svc_shortage *s)
{
	cgn_timer_cancel(&s->timer);
}
