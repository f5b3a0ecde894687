/* SPDX-License-Identifier: Apache-2.0 */
/* scrape: cognitora.v1.Metrics, the program's metrics over its gRPC port. */
#pragma once
#include "io/wire/grpc/grpc.h"
#include "joint/report/telemetry/telemetry.h"

#define SCRAPE_PATH "/cognitora.v1.Metrics/Scrape"
/* Answer the call |c| with the text of |t|'s metrics at this instant. For the method SCRAPE_PATH in a program's
 * table. */
void scrape_answer(struct grpc_call *c, struct telemetry *t);
