/* Messages of many sizes round the ranks, a reduction, and memory that a neighbour writes: every byte is compared. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, wrong;

static unsigned char byte_of(int index, int of, int size)
{
	return index * 7 + of * 13 + size;
}

static void messages(int from, int to)
{
	for (int size = 1; size <= 1 << 20; size *= 4) {
		unsigned char *out = malloc(size), *in = calloc(1, size);

		for (int i = 0; i < size; i++)
			out[i] = byte_of(i, rank, size);
		MPI_Sendrecv(out, size, MPI_BYTE, to, 1, in, size, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < size; i++)
			wrong += in[i] != byte_of(i, from, size);
		free(out);
		free(in);
	}
}

static void written(int from, int to)
{
	enum { COUNT = 1000 };
	int out[COUNT], *memory;
	MPI_Win window;

	MPI_Win_allocate(sizeof out, sizeof *out, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	for (int i = 0; i < COUNT; i++)
		out[i] = i * 3 + rank;
	MPI_Win_fence(0, window);
	MPI_Put(out, COUNT, MPI_INT, to, 0, COUNT, MPI_INT, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < COUNT; i++)
		wrong += memory[i] != i * 3 + from;
	MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
	int sum, all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	messages((rank + ranks - 1) % ranks, (rank + 1) % ranks);
	written((rank + ranks - 1) % ranks, (rank + 1) % ranks);
	rank++;
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	wrong += sum != ranks * (ranks + 1) / 2;
	MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 1)
		printf("%d ranks, %d wrong\n", ranks, all);
	MPI_Finalize();
	return all != 0;
}
