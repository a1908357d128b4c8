/* Several threads post to one queue pair and poll one completion queue: nothing is lost, doubled or mixed up. */
#include "data.h"
#include <stdatomic.h>

#define POSTERS 4
#define POLLERS 2
#define EACH 500

static struct side side;
static struct ibv_qp *a, *b;
static struct ibv_cq *cq;
static atomic_int done, seen[POSTERS * EACH], received;

static void *post(void *number)
{
	int first = (int)(intptr_t)number * EACH;

	for (int i = first; i < first + EACH; i++) {
		struct ibv_sge sge = sge_at(&side, 8 * (i % 1000), 8);
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		struct ibv_recv_wr recv = { .wr_id = 1u << 31, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
		int answer;

		sge.addr += 65536;
		while ((answer = ibv_post_recv(b, &recv, &bad_recv)) == ENOMEM)
			sched_yield();
		CHECK("thread-queues", answer == 0);
		sge.addr -= 65536;
		while ((answer = ibv_post_send(a, &wr, &bad)) == ENOMEM)
			sched_yield();
		CHECK("thread-queues", answer == 0);
	}
	return NULL;
}

static void *poll_all(void *unused)
{
	struct ibv_wc wc[7];

	(void)unused;
	while (atomic_load(&done) < 2 * POSTERS * EACH) {
		int n = ibv_poll_cq(cq, 7, wc);

		CHECK("thread-queues", n >= 0);
		if (n == 0)
			sched_yield();
		for (int i = 0; i < n; i++) {
			CHECK("thread-queues", wc[i].status == IBV_WC_SUCCESS);
			if (wc[i].opcode == IBV_WC_RECV)
				atomic_fetch_add(&received, 1);
			else
				atomic_fetch_add(&seen[wc[i].wr_id], 1);
			atomic_fetch_add(&done, 1);
		}
	}
	return NULL;
}

/* A list of one thread is not mixed with another's. */
static void *post_lists(void *number)
{
	for (int i = 0; i < 50; i++) {
		struct ibv_send_wr wr[5], *bad;
		int answer;

		for (int k = 0; k < 5; k++)
			wr[k] = (struct ibv_send_wr){ .wr_id = (uintptr_t)number * 10 + k, .next = k < 4 ? &wr[k + 1] : NULL,
						      .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
		struct ibv_send_wr *from = wr;
		while ((answer = ibv_post_send(a, from, &bad)) == ENOMEM) {
			from = bad;
			sched_yield();
		}
		CHECK("thread-lists", answer == 0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[POSTERS + POLLERS];

	start(argc, argv);
	side = open_side();
	cq = new_cq(&side, 4096, NULL);
	a = new_qp_of(&side, IBV_QPT_RC, cq, 64);
	b = new_qp_of(&side, IBV_QPT_RC, cq, 256);
	join(&side, a, b);
	for (int i = 0; i < POSTERS + POLLERS; i++)
		CHECK("thread-queues", pthread_create(&threads[i], NULL, i < POSTERS ? post : poll_all, (void *)(intptr_t)i) == 0);
	for (int i = 0; i < POSTERS + POLLERS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < POSTERS * EACH; i++)
		CHECK("thread-queues", seen[i] == 1);
	CHECK("thread-queues", received == POSTERS * EACH);
	ok("thread-queues");

	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	a = new_qp_of(&side, IBV_QPT_RC, cq, 4000);
	b = new_qp_of(&side, IBV_QPT_RC, cq, 4);
	join(&side, a, b);
	for (int i = 0; i < POSTERS; i++)
		CHECK("thread-lists", pthread_create(&threads[i], NULL, post_lists, (void *)(intptr_t)i) == 0);
	for (int i = 0; i < POSTERS; i++)
		pthread_join(threads[i], NULL);
	uint64_t expected = 0;
	for (int i = 0; i < POSTERS * 50 * 5; i++) {
		struct ibv_wc wc = success_of("thread-lists", cq);

		CHECK("thread-lists", i % 5 == 0 ? wc.wr_id % 10 == 0 : wc.wr_id == expected);
		expected = wc.wr_id + 1;
	}
	ok("thread-lists");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
	close_side(&side);
	return 0;
}
