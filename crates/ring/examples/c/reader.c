/* Prints the records of a segment until its writer ends: reader PATH */
#include <stdio.h>
#include <weir_ring.h>

int main(int argc, char **argv)
{
	weir_ring_reader *reader;
	struct weir_ring_record records[64];
	int64_t count, i;
	int code;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PATH\n", argv[0]);
		return 2;
	}
	code = weir_ring_reader_open(&reader, argv[1], NULL);
	if (code != 0) {
		fprintf(stderr, "%s (%s)\n", weir_ring_last_error(),
		        weir_ring_strerror(code));
		return 1;
	}
	for (;;) {
		/* Asked first: what it wrote before it ended is still read. */
		int ended = !weir_ring_reader_has_writer(reader);

		while ((count = weir_ring_readv(reader, records, 64)) > 0)
			for (i = 0; i < count; i++)
				printf("%.*s\n", (int)records[i].length,
				       (const char *)records[i].payload);
		if (count < 0) {
			fprintf(stderr, "%s\n", weir_ring_last_error());
			return 1;
		}
		if (ended)
			break;
		weir_ring_sleep(reader, 1000);
	}
	fprintf(stderr, "%llu lost\n",
	        (unsigned long long)weir_ring_reader_lost(reader));
	weir_ring_reader_close(reader);
	return 0;
}
