// SPDX-License-Identifier: Apache-2.0
// Builds the page into out/page, compressed; with the argument test, the tests of its pure parts into out/test.js.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

if (process.argv[2] === 'test') {
  const tests = readdirSync('test').filter((f) => f.endsWith('.test.ts')).map((f) => `import './${f}';`).join('');
  await build({
    stdin: { contents: tests, resolveDir: 'test' },
    outfile: 'out/test.js',
    bundle: true,
    platform: 'node',
    format: 'esm',
  });
} else {
  rmSync('out/page', { recursive: true, force: true });
  mkdirSync('out/page', { recursive: true });
  const built = await build({
    entryPoints: { app: 'src/main.tsx', style: 'src/style.css' },
    outdir: 'out/page',
    bundle: true,
    minify: true,
    target: 'es2022',
    format: 'esm',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    legalComments: 'none',
    write: false,
  });
  const files = new Map(built.outputFiles.map((f) => [f.path.split('/').pop(), f.contents]));
  for (const name of ['index.html', 'icon.svg']) files.set(name, readFileSync(`src/${name}`));
  for (const [name, contents] of files) {
    const packed = gzipSync(contents, { level: 9 });
    packed[9] = 255; // the operating system: unknown, wherever it is built
    writeFileSync(`out/page/${name}.gz`, packed);
    console.log(`${name}: ${contents.length} bytes, ${packed.length} compressed`);
  }
}
