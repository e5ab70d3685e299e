// Lucene's Monitor over the queries and documents of a file, on one thread.
//
//   java -cp JARS LuceneMonitor.java QUERIES DOCUMENTS CHANGES BATCH ROUND
//
// QUERIES, DOCUMENTS and CHANGES have a text in each line. Documents come in batches of BATCH. Before each ROUND
// documents, as many of CHANGES are added as lines / rounds, and as many of the oldest queries removed. The answer
// is one line of JSON: seconds to register, seconds of processor time of matches and of changes, matches, bytes of
// heap.

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.CharArraySet;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorConfiguration;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.MultiMatchingQueries;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.monitor.TermFilteredPresearcher;
import org.apache.lucene.queryparser.classic.QueryParser;

public class LuceneMonitor {
  static final int COMMIT = 10_000;

  public static void main(String[] args) throws Exception {
    List<String> queries = Files.readAllLines(Path.of(args[0]));
    List<String> documents = Files.readAllLines(Path.of(args[1]));
    List<String> changes = Files.readAllLines(Path.of(args[2]));
    int batch = Integer.parseInt(args[3]);
    int round = Integer.parseInt(args[4]);
    Analyzer analyzer = new StandardAnalyzer(CharArraySet.EMPTY_SET);
    QueryParser parser = new QueryParser("body", analyzer);
    MonitorConfiguration how = new MonitorConfiguration();
    how.setQueryUpdateBufferSize(COMMIT);
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    try (Monitor monitor = new Monitor(analyzer, new TermFilteredPresearcher(), how)) {
      long begun = threads.getCurrentThreadCpuTime();
      int next = register(monitor, parser, queries, 0);
      long registered = threads.getCurrentThreadCpuTime() - begun;
      System.gc();
      long heap = Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
      int rounds = (documents.size() + round - 1) / round;
      int each = changes.size() / rounds;
      long matches = 0;
      long changed = 0;
      long matched = 0;
      for (int at = 0, oldest = 0; at < documents.size(); at += round) {
        long start = threads.getCurrentThreadCpuTime();
        if (each > 0) {
          List<String> gone = new ArrayList<>();
          for (int i = 0; i < each; i++) {
            gone.add(Integer.toString(oldest++));
          }
          monitor.deleteById(gone);
          int from = at / round * each;
          next = register(monitor, parser, changes.subList(from, from + each), next);
        }
        long middle = threads.getCurrentThreadCpuTime();
        changed += middle - start;
        int end = Math.min(at + round, documents.size());
        for (int lo = at; lo < end; lo += batch) {
          matches += match(monitor, documents.subList(lo, Math.min(lo + batch, end)));
        }
        matched += threads.getCurrentThreadCpuTime() - middle;
      }
      System.out.printf(
          "{\"register_s\": %f, \"match_s\": %f, \"change_s\": %f, \"matches\": %d, \"heap\": %d}%n",
          registered / 1e9, matched / 1e9, changed / 1e9, matches, heap);
    }
  }

  static int register(Monitor monitor, QueryParser parser, List<String> texts, int next) throws Exception {
    List<MonitorQuery> made = new ArrayList<>();
    for (String text : texts) {
      made.add(new MonitorQuery(Integer.toString(next++), parser.parse(text), text, Collections.emptyMap()));
      if (made.size() == COMMIT) {
        monitor.register(made);
        made.clear();
      }
    }
    monitor.register(made);
    return next;
  }

  static long match(Monitor monitor, List<String> texts) throws Exception {
    Document[] some = new Document[texts.size()];
    for (int i = 0; i < some.length; i++) {
      some[i] = new Document();
      some[i].add(new TextField("body", texts.get(i), Field.Store.NO));
    }
    long found = 0;
    MultiMatchingQueries<QueryMatch> all = monitor.match(some, QueryMatch.SIMPLE_MATCHER);
    for (int i = 0; i < some.length; i++) {
      found += all.getMatchCount(i);
    }
    return found;
  }
}
