/* SPDX-License-Identifier: Apache-2.0 */
/* stage: the files for one host, as a tar. */
#pragma once
#include "ctl/rack/fleet.h"
#include "ctl/rack/plan.h"

/* Set |*out| to a file with the input of the order put: the first line and the tar. Its parts lie below |folder|
 * meanwhile, with mode 0700, and are removed again. The caller closes the file. */
CGN_RC rack_stage(const struct fleet *f, const char *folder, const struct rack_node *node, int *out,
	struct cgn_err *err);
