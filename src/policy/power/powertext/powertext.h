/* SPDX-License-Identifier: Apache-2.0 */
/* powertext: readings of power in a Prometheus text: NVIDIA's DCGM exporter (DCGM_FI_DEV_*), and Cognitora's own programs
 * (cgn_power_watts and the like, as joint/power/powerpoll shows them). Other series are skipped, so one function reads the
 * /metrics of any program. Pure, in place: no memory but the caller's. Time: one pass over the text, and for each reading
 * a look at those before it. */
#pragma once
#include "base/core/str.h"
#include "policy/power/power/power.h"

struct powertext {
	/* Given */
	const char
		*node; /* The node that is measured. Cognitora's series of another node are skipped; NULL: the
	                     node is that of the first of them */
	cgn_nsec time, max_age; /* Set in each reading; time stamps in the text are ignored */
	struct power_reading *out;
	size_t cap;
	/* Found */
	size_t n;                  /* Readings in |out| */
	size_t dropped;            /* Readings for which |cap| left no room */
	char why[POWER_WHY_BYTES]; /* A reason for which readings were left out; "": none were */
};
/* Read |text| into |t|. A GPU that is told several times (MIG instances, pods that share it) is read once. DCGM's GPUs of
 * a second host (label Hostname) are left out, and |why| names it. A value that no device has (NaN, DCGM's marks for
 * "blank") is a FAILING reading. Returns true when the text has a series of power at all. */
bool powertext_read(struct cgn_str text, struct powertext *t);
