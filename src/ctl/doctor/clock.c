/* SPDX-License-Identifier: Apache-2.0 */
/* clock: this machine's clock against those of the servers that answered. */
#include <stdlib.h>
#include <sys/timex.h>

#include "ctl/doctor/doctor.h"

#define SKEW_WARNS   2 /* Seconds; the field Date has whole ones. */
#define SKEW_PROBLEM 30

void check_clock(struct doctor *d)
{
	int64_t worst = 0;
	const struct probe *with = NULL;
	size_t compared = 0;
	for (size_t i = 0; i < d->probes.n; i++) {
		const struct probe *q = &d->probes.list[i];
		if (q->date == 0)
			continue;
		compared++;
		if (llabs(q->date - q->at) >= llabs(worst)) {
			worst = q->date - q->at;
			with = q;
		}
	}
	if (with != NULL && llabs(worst) > SKEW_WARNS) {
		doctor_find(d, llabs(worst) > SKEW_PROBLEM ? DOCTOR_PROBLEM : DOCTOR_WARNING,
			"the clock of %s is %lld s %s this machine's; certificates, tokens and leases go by it",
			with->addr, llabs(worst), worst > 0 ? "ahead of" : "behind");
		doctor_do(d, "timedatectl set-ntp true, on both machines");
	}
	struct timex state = {.modes = 0};
	if (adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) != 0) {
		doctor_find(d, DOCTOR_WARNING,
			"no time service keeps the clock right, as the kernel says (in a virtual machine the host may do that)");
		doctor_do(d, "timedatectl set-ntp true, or install chrony");
	}
	if (doctor_is_fine(d) && compared > 0)
		doctor_find(d, DOCTOR_OK, "differs by at most %lld s from %zu answers", llabs(worst),
			compared);
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "a time service keeps it right; no server answered to compare");
}
